/* CUDA arrays and mipmapped arrays: their size follows from the descriptor. */
#include <stdint.h>

#include "hook.h"

/* Tiling makes large arrays end on whole granules; small ones share a granule. */
#define GRANULE (2ULL << 20)

/* Bits of one element: per channel for the plain formats, as a whole for the packed, planar and compressed ones. */
static uint64_t element_bits(int format, unsigned int channels) {
    switch (format) {
    case CU_AD_FORMAT_UNSIGNED_INT8:
    case CU_AD_FORMAT_SIGNED_INT8:
        return 8ULL * channels;
    case CU_AD_FORMAT_UNSIGNED_INT16:
    case CU_AD_FORMAT_SIGNED_INT16:
    case CU_AD_FORMAT_HALF:
        return 16ULL * channels;
    case CU_AD_FORMAT_UNSIGNED_INT32:
    case CU_AD_FORMAT_SIGNED_INT32:
    case CU_AD_FORMAT_FLOAT:
        return 32ULL * channels;
    default:
        break;
    }
    static const struct {
        short first, last;
        short bits;
    } packed[] = {
        {0x50, 0x50, 32},                                     /* 10:10:10:2 */
        {0x91, 0x92, 4},                                      /* BC1 */
        {0x93, 0x96, 8},                                      /* BC2, BC3 */
        {0x97, 0x98, 4},                                      /* BC4 */
        {0x99, 0x9e, 8},                                      /* BC5, BC6H, BC7 */
        {0x9f, 0x9f, 24},                                     /* P010 */
        {0xa1, 0xa1, 24},                                     /* P016 */
        {0xa2, 0xa2, 16},                                     /* NV16 */
        {0xa3, 0xa4, 32},                                     /* P210, P216 */
        {0xa5, 0xa5, 16},                                     /* YUY2 */
        {0xa6, 0xa9, 32},                                     /* Y210, Y216, AYUV, Y410 */
        {0xb0, 0xb0, 12},                                     /* NV12 */
        {0xb1, 0xb1, 64},                                     /* Y416 */
        {0xb2, 0xb2, 24},                                     /* Y444 planar 8 */
        {0xb3, 0xb3, 48},                                     /* Y444 planar 10 */
        {0xb4, 0xb4, 24},                                     /* YUV444 semi-planar 8 */
        {0xb5, 0xb5, 48},                                     /* YUV444 semi-planar 16 */
        {0xc0, 0xc0, 8},  {0xc1, 0xc1, 16}, {0xc2, 0xc2, 32}, /* UNORM 8 x1 x2 x4 */
        {0xc3, 0xc3, 16}, {0xc4, 0xc4, 32}, {0xc5, 0xc5, 64}, /* UNORM 16 */
        {0xc6, 0xc6, 8},  {0xc7, 0xc7, 16}, {0xc8, 0xc8, 32}, /* SNORM 8 */
        {0xc9, 0xc9, 16}, {0xca, 0xca, 32}, {0xcb, 0xcb, 64}, /* SNORM 16 */
    };
    for (size_t i = 0; i < sizeof packed / sizeof *packed; i++) {
        if (format >= packed[i].first && format <= packed[i].last) {
            return (uint64_t)packed[i].bits;
        }
    }
    return 128; /* a format newer than this table: the largest element there is */
}

static uint64_t at_least_one(uint64_t value) {
    return value == 0 ? 1 : value;
}

static uint64_t level_bytes(const CUDA_ARRAY3D_DESCRIPTOR *desc, unsigned int level) {
    /* Layers and cube faces keep their number on all levels. */
    bool layered = (desc->Flags & (CUDA_ARRAY3D_LAYERED | CUDA_ARRAY3D_CUBEMAP)) != 0;
    uint64_t width = at_least_one(desc->Width >> level);
    uint64_t height = at_least_one(desc->Height >> level);
    uint64_t depth = at_least_one(layered ? desc->Depth : desc->Depth >> level);
    uint64_t elements;
    uint64_t bits;
    if (__builtin_mul_overflow(width, height, &elements) || __builtin_mul_overflow(elements, depth, &elements) ||
        __builtin_mul_overflow(elements, element_bits(desc->Format, desc->NumChannels), &bits)) {
        return UINT64_MAX / 4;
    }
    return bits / 8 + (bits % 8 != 0 ? 1 : 0);
}

/* Sparse and deferred arrays get their memory from cuMemCreate, which is counted there. */
static bool backed(unsigned int flags) {
    return (flags & (CUDA_ARRAY3D_SPARSE | CUDA_ARRAY3D_DEFERRED_MAPPING)) == 0;
}

typedef struct {
    int card;
    uint64_t context;
    uint64_t bytes;
} grant_t;

static CUresult begin(grant_t *grant, const CUDA_ARRAY3D_DESCRIPTOR *desc, unsigned int levels) {
    grant->bytes = 0;
    for (unsigned int level = 0; backed(desc->Flags) && level < levels && level < 32; level++) {
        grant->bytes += level_bytes(desc, level);
    }
    if (grant->bytes > GRANULE) {
        grant->bytes = (grant->bytes + GRANULE - 1) / GRANULE * GRANULE;
    }
    grant->context = 0;
    grant->card = vgpu_current_card(&grant->context);
    return vgpu_reserve(grant->card, grant->bytes, VGPU_USE_DATA);
}

/* False: the object could not be written down, and its bytes are returned already. */
static bool finish(const grant_t *grant, CUresult result, book_kind_t kind, const void *object) {
    bool noted = result == CUDA_SUCCESS &&
                 vgpu_note(kind, (uint64_t)(uintptr_t)object, grant->bytes, grant->context, grant->card, VGPU_USE_DATA);
    if (!noted) {
        vgpu_return(grant->card, grant->bytes, VGPU_USE_DATA);
    }
    return noted || result != CUDA_SUCCESS;
}

static CUresult finish_array(const grant_t *grant, CUresult result, CUarray array) {
    if (!finish(grant, result, BOOK_ARRAY, array)) {
        REAL(cuArrayDestroy)(array);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    return result;
}

#define CREATE_ARRAY(symbol, wide)                                                                                     \
    FETCH_REAL(symbol)                                                                                                 \
    FORWARD_UNLESS_COUNTING(real(handle, desc))                                                                        \
    if (handle == NULL || desc == NULL) {                                                                              \
        return real(handle, desc);                                                                                     \
    }                                                                                                                  \
    const CUDA_ARRAY3D_DESCRIPTOR description = wide;                                                                  \
    grant_t grant;                                                                                                     \
    CUresult refusal = begin(&grant, &description, 1);                                                                 \
    if (refusal != CUDA_SUCCESS) {                                                                                     \
        return refusal;                                                                                                \
    }                                                                                                                  \
    CUresult result = real(handle, desc);                                                                              \
    return finish_array(&grant, result, *handle);

#define WIDE_2D {desc->Width, desc->Height, 0, desc->Format, desc->NumChannels, 0}
#define WIDE_3D {desc->Width, desc->Height, desc->Depth, desc->Format, desc->NumChannels, desc->Flags}

CUresult cuArrayCreate(CUarray *handle, const CUDA_ARRAY_DESCRIPTOR_v1 *desc){CREATE_ARRAY(cuArrayCreate, WIDE_2D)}

CUresult cuArrayCreate_v2(CUarray *handle, const CUDA_ARRAY_DESCRIPTOR *desc){CREATE_ARRAY(cuArrayCreate_v2, WIDE_2D)}

CUresult
    cuArray3DCreate(CUarray *handle, const CUDA_ARRAY3D_DESCRIPTOR_v1 *desc){CREATE_ARRAY(cuArray3DCreate, WIDE_3D)}

CUresult
    cuArray3DCreate_v2(CUarray *handle, const CUDA_ARRAY3D_DESCRIPTOR *desc){CREATE_ARRAY(cuArray3DCreate_v2, WIDE_3D)}

CUresult cuArrayDestroy(CUarray array) {
    FETCH_REAL(cuArrayDestroy)
    FORWARD_UNLESS_MEMBER(real(array))
    FREE_NOTED(BOOK_ARRAY, (uint64_t)(uintptr_t)array, real(array));
}

CUresult cuMipmappedArrayCreate(CUmipmappedArray *handle, const CUDA_ARRAY3D_DESCRIPTOR *desc, unsigned int levels) {
    FETCH_REAL(cuMipmappedArrayCreate)
    FORWARD_UNLESS_COUNTING(real(handle, desc, levels))
    if (handle == NULL || desc == NULL) {
        return real(handle, desc, levels);
    }
    grant_t grant;
    CUresult refusal = begin(&grant, desc, levels);
    if (refusal != CUDA_SUCCESS) {
        return refusal;
    }
    CUresult result = real(handle, desc, levels);
    if (!finish(&grant, result, BOOK_MIPMAP, *handle)) {
        REAL(cuMipmappedArrayDestroy)(*handle);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    return result;
}

CUresult cuMipmappedArrayDestroy(CUmipmappedArray array) {
    FETCH_REAL(cuMipmappedArrayDestroy)
    FORWARD_UNLESS_MEMBER(real(array))
    FREE_NOTED(BOOK_MIPMAP, (uint64_t)(uintptr_t)array, real(array));
}
