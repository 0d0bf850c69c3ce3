/* Registers memory of the process itself. */
#include "program.h"

int main(int argc, char **argv) {
    size_t bytes = start(argc, argv);
    void *pointer = malloc(bytes);
    show("before");
    CHECK(cuMemHostRegister_v2(pointer, bytes, 0));
    show("held");
    CHECK(cuMemHostUnregister(pointer));
    show("after");
    free(pointer);
    return 0;
}
