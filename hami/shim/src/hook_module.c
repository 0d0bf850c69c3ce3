/*
 * Modules and libraries: code and globals are device memory of unknown size. Charged is how much the card's free memory
 * fell during the load, at most about the size of the image: what fell beyond that was somebody else's allocation.
 */
#include <elf.h>
#include <fcntl.h>
#include <stdint.h>
#include <string.h>
#include <unistd.h>

#include "filelock.h"
#include "hook.h"

#define GRANULE              (2ULL << 20)
#define UNKNOWN_IMAGE        (64ULL << 20) /* PTX: its code does not exist yet */
#define FATBIN_MAGIC         0xBA55ED50U
#define FATBIN_WRAPPER_MAGIC 0x466243B1U

typedef struct {
    uint64_t context;
    int card;
    uint64_t largest;
    uint64_t free_before;
} load_t;

static bool free_bytes(uint64_t *bytes) {
    __typeof__(&cuMemGetInfo_v2) get = REAL(cuMemGetInfo_v2);
    size_t left;
    size_t total;
    bool known = get != NULL && get(&left, &total) == CUDA_SUCCESS;
    *bytes = known ? left : 0;
    return known;
}

/* What a cubin takes on the card: its loaded sections, also those that have no bytes in the file (zeroed variables). */
static uint64_t cubin_bytes(const char *image) {
    Elf64_Ehdr header;
    memcpy(&header, image, sizeof header);
    uint64_t bytes = header.e_shoff + (uint64_t)header.e_shentsize * header.e_shnum;
    for (unsigned int i = 0; header.e_shentsize == sizeof(Elf64_Shdr) && i < header.e_shnum; i++) {
        Elf64_Shdr section;
        memcpy(&section, image + header.e_shoff + i * sizeof section, sizeof section);
        if ((section.sh_flags & SHF_ALLOC) != 0 && section.sh_type == SHT_NOBITS) {
            bytes += section.sh_size;
        }
    }
    return bytes;
}

static uint64_t image_bytes(const void *image) {
    uint32_t magic;
    memcpy(&magic, image, sizeof magic);
    if (magic == FATBIN_WRAPPER_MAGIC) {
        memcpy((void *)&image, (const char *)image + 8, sizeof image);
        memcpy(&magic, image, sizeof magic);
    }
    if (magic == FATBIN_MAGIC) {
        uint64_t size;
        memcpy(&size, (const char *)image + 8, sizeof size);
        return size + UNKNOWN_IMAGE; /* its parts may be compressed, and have zeroed variables */
    }
    if (memcmp(&magic, ELFMAG, SELFMAG) == 0) {
        return cubin_bytes(image);
    }
    return UNKNOWN_IMAGE;
}

static uint64_t file_bytes(const char *path) {
    int64_t bytes = 0;
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd >= 0) {
        vgpu_file_size(fd, &bytes);
        close(fd);
    }
    return (bytes > 0 ? (uint64_t)bytes : 0) + UNKNOWN_IMAGE;
}

static void begin(load_t *load, uint64_t image) {
    load->context = 0;
    load->card = vgpu_current_card(&load->context);
    load->largest = (image / GRANULE + 2) * GRANULE;
    if (load->card >= 0 && !free_bytes(&load->free_before)) {
        load->card = VGPU_CARD_NONE;
    }
}

/* False: what was loaded does not fit the limit; the caller unloads it. */
static bool finish(const load_t *load, CUresult result, book_kind_t kind, const void *object, bool context_bound) {
    uint64_t free_after;
    if (result != CUDA_SUCCESS || load->card < 0 || !free_bytes(&free_after) || free_after >= load->free_before) {
        return true;
    }
    uint64_t bytes = load->free_before - free_after;
    bytes = bytes < load->largest ? bytes : load->largest;
    if (vgpu_reserve(load->card, bytes, VGPU_USE_MODULE) != CUDA_SUCCESS) {
        return false;
    }
    uint64_t context = context_bound ? load->context : 0;
    if (!vgpu_note(kind, (uint64_t)(uintptr_t)object, bytes, context, load->card, VGPU_USE_MODULE)) {
        vgpu_return(load->card, bytes, VGPU_USE_MODULE);
        return false;
    }
    return true;
}

static CUresult finish_module(const load_t *load, CUresult result, CUmodule module) {
    if (!finish(load, result, BOOK_MODULE, module, true)) {
        REAL(cuModuleUnload)(module);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    return result;
}

static CUresult finish_library(const load_t *load, CUresult result, CUlibrary library) {
    if (!finish(load, result, BOOK_LIBRARY, library, false)) {
        REAL(cuLibraryUnload)(library);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    return result;
}

#define LOAD(symbol, out, source, bytes, finish_with, call)                                                            \
    FETCH_REAL(symbol)                                                                                                 \
    FORWARD_UNLESS_COUNTING(call)                                                                                      \
    if ((out) == NULL || (source) == NULL) {                                                                           \
        return call;                                                                                                   \
    }                                                                                                                  \
    load_t load;                                                                                                       \
    begin(&load, bytes);                                                                                               \
    CUresult result = call;                                                                                            \
    return finish_with(&load, result, *(out));

CUresult cuModuleLoad(CUmodule *module, const char *file){
    LOAD(cuModuleLoad, module, file, file_bytes(file), finish_module, real(module, file))}

CUresult cuModuleLoadData(CUmodule *module, const void *image){
    LOAD(cuModuleLoadData, module, image, image_bytes(image), finish_module, real(module, image))}

CUresult cuModuleLoadDataEx(CUmodule *module, const void *image, unsigned int num_options, int *options,
                            void **values){LOAD(cuModuleLoadDataEx, module, image, image_bytes(image), finish_module,
                                                real(module, image, num_options, options, values))}

CUresult cuModuleLoadFatBinary(CUmodule *module, const void *image){
    LOAD(cuModuleLoadFatBinary, module, image, image_bytes(image), finish_module, real(module, image))}

CUresult cuModuleUnload(CUmodule module) {
    FETCH_REAL(cuModuleUnload)
    FORWARD_UNLESS_MEMBER(real(module))
    FREE_NOTED(BOOK_MODULE, (uint64_t)(uintptr_t)module, real(module));
}

CUresult cuLibraryLoadData(CUlibrary *library, const void *code, int *jit_options, void **jit_values,
                           unsigned int num_jit, int *lib_options, void **lib_values, unsigned int num_lib){
    LOAD(cuLibraryLoadData, library, code, image_bytes(code), finish_library,
         real(library, code, jit_options, jit_values, num_jit, lib_options, lib_values, num_lib))}

CUresult cuLibraryLoadFromFile(CUlibrary *library, const char *file, int *jit_options, void **jit_values,
                               unsigned int num_jit, int *lib_options, void **lib_values, unsigned int num_lib){
    LOAD(cuLibraryLoadFromFile, library, file, file_bytes(file), finish_library,
         real(library, file, jit_options, jit_values, num_jit, lib_options, lib_values, num_lib))}

CUresult cuLibraryUnload(CUlibrary library) {
    FETCH_REAL(cuLibraryUnload)
    FORWARD_UNLESS_MEMBER(real(library))
    FREE_NOTED(BOOK_LIBRARY, (uint64_t)(uintptr_t)library, real(library));
}
