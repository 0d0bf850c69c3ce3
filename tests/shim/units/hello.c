/* Says hello through puts and shows that nothing else was printed. */
#include <stdio.h>

int main(void) {
    return puts("hello") < 0;
}
