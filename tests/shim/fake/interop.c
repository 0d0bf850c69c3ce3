/* Memory shared between processes and interfaces, and code loading, of the stand-in driver. */
#include "driver.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

struct ipc_ticket {
    pid_t pid;
    CUdeviceptr at;
    size_t bytes;
};

struct CUextMemory_st {
    size_t bytes;
    int machine;
};

struct CUmod_st {
    size_t bytes;
    int machine;
};

CUresult cuIpcGetMemHandle(CUipcMemHandle *handle, CUdeviceptr dptr) {
    struct fake_block block;
    if (!fake_block_find(dptr, &block)) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    struct ipc_ticket ticket = {.pid = getpid(), .at = dptr, .bytes = block.bytes};
    memset(handle, 0, sizeof *handle);
    memcpy(handle, &ticket, sizeof ticket);
    return CUDA_SUCCESS;
}

CUresult cuIpcOpenMemHandle_v2(CUdeviceptr *dptr, CUipcMemHandle handle, unsigned int flags) {
    FAKE_ENTER("cuIpcOpenMemHandle_v2");
    (void)flags;
    struct ipc_ticket ticket;
    memcpy(&ticket, &handle, sizeof ticket);
    CUcontext context;
    CUresult result = fake_context(&context);
    if (result != CUDA_SUCCESS || ticket.bytes == 0) {
        return result != CUDA_SUCCESS ? result : CUDA_ERROR_INVALID_VALUE;
    }
    size_t span;
    *dptr = fake_address(ticket.bytes, false, &span);
    return fake_block_borrowed(*dptr, ticket.bytes, context);
}

CUresult cuIpcOpenMemHandle(CUdeviceptr *dptr, CUipcMemHandle handle, unsigned int flags) {
    return cuIpcOpenMemHandle_v2(dptr, handle, flags);
}

CUresult cuIpcCloseMemHandle(CUdeviceptr dptr) {
    return cuMemFree_v2(dptr);
}

/* The other interface's memory is on this card too; the stand-in driver books it with the importing process. */
CUresult cuImportExternalMemory(CUexternalMemory *out, const CUDA_EXTERNAL_MEMORY_HANDLE_DESC *desc) {
    FAKE_ENTER("cuImportExternalMemory");
    CUcontext context;
    CUresult result = fake_context(&context);
    if (result != CUDA_SUCCESS) {
        return result;
    }
    if (!fake_take(context->machine, desc->size)) {
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    *out = malloc(sizeof **out);
    **out = (struct CUextMemory_st){.bytes = desc->size, .machine = context->machine};
    return CUDA_SUCCESS;
}

CUresult cuExternalMemoryGetMappedBuffer(CUdeviceptr *dptr, CUexternalMemory memory,
                                         const CUDA_EXTERNAL_MEMORY_BUFFER_DESC *desc) {
    if (desc->offset + desc->size > memory->bytes) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    size_t span;
    CUcontext context = NULL;
    cuCtxGetCurrent(&context);
    *dptr = fake_address(desc->size, false, &span);
    return fake_block_borrowed(*dptr, desc->size, context);
}

CUresult cuDestroyExternalMemory(CUexternalMemory memory) {
    FAKE_ENTER("cuDestroyExternalMemory");
    fake_give(memory->machine, memory->bytes);
    free(memory);
    return CUDA_SUCCESS;
}

static CUresult module_new(CUmodule *module) {
    CUcontext context;
    CUresult result = fake_context(&context);
    if (result != CUDA_SUCCESS) {
        return result;
    }
    size_t bytes = 0;
    for (int i = 0, machine = 0; i < fake_visible_count(); i++) {
        const struct fake_card *card = fake_visible_card(i, &machine);
        bytes = machine == context->machine ? card->module_bytes : bytes;
    }
    if (!fake_take(context->machine, bytes)) {
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    *module = malloc(sizeof **module);
    **module = (struct CUmod_st){.bytes = bytes, .machine = context->machine};
    return CUDA_SUCCESS;
}

CUresult cuModuleLoad(CUmodule *module, const char *file) {
    FAKE_ENTER("cuModuleLoad");
    (void)file;
    return module_new(module);
}

CUresult cuModuleLoadData(CUmodule *module, const void *image) {
    FAKE_ENTER("cuModuleLoadData");
    (void)image;
    return module_new(module);
}

CUresult cuModuleLoadDataEx(CUmodule *module, const void *image, unsigned int num_options, int *options,
                            void **values) {
    (void)num_options, (void)options, (void)values;
    return cuModuleLoadData(module, image);
}

CUresult cuModuleLoadFatBinary(CUmodule *module, const void *image) {
    return cuModuleLoadData(module, image);
}

CUresult cuModuleUnload(CUmodule module) {
    FAKE_ENTER("cuModuleUnload");
    fake_give(module->machine, module->bytes);
    free(module);
    return CUDA_SUCCESS;
}

CUresult cuModuleGetFunction(CUfunction *function, CUmodule module, const char *name) {
    (void)name;
    *function = (CUfunction)module;
    return CUDA_SUCCESS;
}

CUresult cuLibraryLoadData(CUlibrary *library, const void *code, int *jit_options, void **jit_values,
                           unsigned int num_jit, int *lib_options, void **lib_values, unsigned int num_lib) {
    FAKE_ENTER("cuLibraryLoadData");
    (void)jit_options, (void)jit_values, (void)num_jit, (void)lib_options, (void)lib_values, (void)num_lib, (void)code;
    return module_new((CUmodule *)library);
}

CUresult cuLibraryLoadFromFile(CUlibrary *library, const char *file, int *jit_options, void **jit_values,
                               unsigned int num_jit, int *lib_options, void **lib_values, unsigned int num_lib) {
    return cuLibraryLoadData(library, file, jit_options, jit_values, num_jit, lib_options, lib_values, num_lib);
}

CUresult cuLibraryUnload(CUlibrary library) {
    return cuModuleUnload((CUmodule)library);
}
