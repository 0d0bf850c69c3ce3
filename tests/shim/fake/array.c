/* Arrays and mipmapped arrays of the stand-in driver: whole granules of device memory. */
#include "driver.h"

#include <stdlib.h>

struct CUarray_st {
    size_t bytes;
    size_t shape_bytes;
    unsigned int flags;
    CUcontext context;
    int machine;
    struct CUarray_st *next;
};

struct CUmipmappedArray_st {
    struct CUarray_st array;
};

static struct CUarray_st *arrays;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static size_t bytes_of_format(int format) {
    switch (format) {
    case CU_AD_FORMAT_UNSIGNED_INT8:
    case CU_AD_FORMAT_SIGNED_INT8:
        return 1;
    case CU_AD_FORMAT_UNSIGNED_INT16:
    case CU_AD_FORMAT_SIGNED_INT16:
    case CU_AD_FORMAT_HALF:
        return 2;
    default:
        return 4;
    }
}

static size_t at_least_one(size_t value) {
    return value == 0 ? 1 : value;
}

static size_t level_bytes(const CUDA_ARRAY3D_DESCRIPTOR *shape, unsigned int level) {
    size_t depth = shape->Flags & CUDA_ARRAY3D_LAYERED ? shape->Depth : shape->Depth >> level;
    return at_least_one(shape->Width >> level) * at_least_one(shape->Height >> level) * at_least_one(depth) *
           shape->NumChannels * bytes_of_format(shape->Format);
}

static CUresult array_new(CUarray array, size_t bytes, unsigned int flags) {
    CUcontext context;
    CUresult result = fake_context(&context);
    if (result != CUDA_SUCCESS) {
        return result;
    }
    bool empty = (flags & (CUDA_ARRAY3D_SPARSE | CUDA_ARRAY3D_DEFERRED_MAPPING)) != 0;
    array->bytes = empty ? 0 : fake_round_up(bytes, FAKE_GRANULE);
    array->shape_bytes = bytes;
    array->flags = flags;
    array->context = context;
    array->machine = context->machine;
    if (!fake_take(context->machine, array->bytes)) {
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    pthread_mutex_lock(&lock);
    array->next = arrays;
    arrays = array;
    pthread_mutex_unlock(&lock);
    return CUDA_SUCCESS;
}

static CUresult array_drop(CUarray array) {
    pthread_mutex_lock(&lock);
    struct CUarray_st **link = &arrays;
    while (*link != NULL && *link != array) {
        link = &(*link)->next;
    }
    bool known = *link != NULL;
    if (known) {
        *link = array->next;
    }
    pthread_mutex_unlock(&lock);
    if (!known) {
        return CUDA_ERROR_INVALID_HANDLE;
    }
    fake_give(array->machine, array->bytes);
    free(array);
    return CUDA_SUCCESS;
}

void fake_arrays_of_context_drop(CUcontext context) {
    for (;;) {
        pthread_mutex_lock(&lock);
        CUarray array = arrays;
        while (array != NULL && array->context != context) {
            array = array->next;
        }
        pthread_mutex_unlock(&lock);
        if (array == NULL) {
            return;
        }
        array_drop(array);
    }
}

CUresult cuArray3DCreate_v2(CUarray *handle, const CUDA_ARRAY3D_DESCRIPTOR *desc) {
    FAKE_ENTER("cuArray3DCreate_v2");
    if (handle == NULL || desc == NULL || desc->Width == 0 || desc->NumChannels == 0) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    CUarray array = calloc(1, sizeof *array);
    CUresult result = array_new(array, level_bytes(desc, 0), desc->Flags);
    if (result != CUDA_SUCCESS) {
        free(array);
        return result;
    }
    *handle = array;
    return CUDA_SUCCESS;
}

CUresult cuArray3DCreate(CUarray *handle, const CUDA_ARRAY3D_DESCRIPTOR_v1 *desc) {
    FAKE_ENTER("cuArray3DCreate");
    CUDA_ARRAY3D_DESCRIPTOR wide = {.Width = desc->Width,
                                    .Height = desc->Height,
                                    .Depth = desc->Depth,
                                    .Format = desc->Format,
                                    .NumChannels = desc->NumChannels,
                                    .Flags = desc->Flags};
    return cuArray3DCreate_v2(handle, &wide);
}

CUresult cuArrayCreate_v2(CUarray *handle, const CUDA_ARRAY_DESCRIPTOR *desc) {
    FAKE_ENTER("cuArrayCreate_v2");
    if (desc == NULL) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    CUDA_ARRAY3D_DESCRIPTOR wide = {
        .Width = desc->Width, .Height = desc->Height, .Format = desc->Format, .NumChannels = desc->NumChannels};
    return cuArray3DCreate_v2(handle, &wide);
}

CUresult cuArrayCreate(CUarray *handle, const CUDA_ARRAY_DESCRIPTOR_v1 *desc) {
    FAKE_ENTER("cuArrayCreate");
    CUDA_ARRAY3D_DESCRIPTOR wide = {
        .Width = desc->Width, .Height = desc->Height, .Format = desc->Format, .NumChannels = desc->NumChannels};
    return cuArray3DCreate_v2(handle, &wide);
}

CUresult cuArrayDestroy(CUarray array) {
    FAKE_ENTER("cuArrayDestroy");
    return array_drop(array);
}

CUresult cuMipmappedArrayCreate(CUmipmappedArray *handle, const CUDA_ARRAY3D_DESCRIPTOR *desc, unsigned int levels) {
    FAKE_ENTER("cuMipmappedArrayCreate");
    size_t bytes = 0;
    for (unsigned int level = 0; level < levels; level++) {
        bytes += level_bytes(desc, level);
    }
    CUmipmappedArray made = calloc(1, sizeof *made);
    CUresult result = array_new(&made->array, bytes, desc->Flags);
    if (result != CUDA_SUCCESS) {
        free(made);
        return result;
    }
    *handle = made;
    return CUDA_SUCCESS;
}

CUresult cuMipmappedArrayDestroy(CUmipmappedArray array) {
    FAKE_ENTER("cuMipmappedArrayDestroy");
    return array_drop(&array->array);
}

/* As the reference says: only arrays whose memory is mapped later can be asked. */
CUresult cuArrayGetMemoryRequirements(CUDA_ARRAY_MEMORY_REQUIREMENTS *out, CUarray array, CUdevice dev) {
    (void)dev;
    if ((array->flags & CUDA_ARRAY3D_DEFERRED_MAPPING) == 0) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    *out = (CUDA_ARRAY_MEMORY_REQUIREMENTS){.size = fake_round_up(array->shape_bytes, FAKE_GRANULE),
                                            .alignment = FAKE_GRANULE};
    return fake_ready();
}

CUresult cuMipmappedArrayGetMemoryRequirements(CUDA_ARRAY_MEMORY_REQUIREMENTS *out, CUmipmappedArray array,
                                               CUdevice dev) {
    return cuArrayGetMemoryRequirements(out, &array->array, dev);
}
