/* A three-dimensional array of floats. */
#include "program.h"

int main(int argc, char **argv) {
    size_t bytes = start(argc, argv);
    CUDA_ARRAY3D_DESCRIPTOR shape = {
        .Width = 256, .Height = 256, .Depth = bytes / (256 * 1024), .Format = CU_AD_FORMAT_FLOAT, .NumChannels = 1};
    CUarray array;
    show("before");
    CHECK(cuArray3DCreate_v2(&array, &shape));
    show("held");
    CHECK(cuArrayDestroy(array));
    show("after");
    return 0;
}
