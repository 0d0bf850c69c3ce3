/* cuGetProcAddress, private tables and texts of the stand-in driver. The version is compiled in: 11.8, 12.4, 12.9 and
 * 13.x are four libraries. */
#include "card.h"
#include "cuda_min.h"
#include "exports.h"

#include <string.h>

#ifndef FAKE_CUDA_VERSION
#define FAKE_CUDA_VERSION 12040
#endif

CUresult cuDriverGetVersion(int *version) {
    FAKE_ENTER("cuDriverGetVersion");
    if (version == NULL) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    *version = FAKE_CUDA_VERSION;
    return CUDA_SUCCESS;
}

/* The newest form that both the driver and the caller know; a per-thread form where one was asked for. */
static const struct fake_export *best(const char *name, int version, int per_thread) {
    const struct fake_export *found = NULL;
    for (size_t i = 0; i < fake_export_count; i++) {
        const struct fake_export *entry = &fake_exports[i];
        if (entry->since > version || entry->per_thread > per_thread || strcmp(entry->base, name) != 0) {
            continue;
        }
        if (found == NULL || entry->since > found->since ||
            (entry->since == found->since && entry->per_thread > found->per_thread)) {
            found = entry;
        }
    }
    return found;
}

static int known(const char *name) {
    return best(name, FAKE_CUDA_VERSION, 1) != NULL;
}

static CUresult resolve(const char *name, void **pfn, int version, uint64_t flags, int *status) {
    if (name == NULL || pfn == NULL || version > FAKE_CUDA_VERSION || flags > 2) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    const struct fake_export *entry = best(name, version, flags == CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM);
    *pfn = entry != NULL ? (void *)entry->address : NULL;
    *status = entry != NULL ? CU_GET_PROC_ADDRESS_SUCCESS
              : known(name) ? CU_GET_PROC_ADDRESS_VERSION_NOT_SUFFICIENT
                            : CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND;
    return CUDA_SUCCESS;
}

/* The first form has no status to tell with, so it fails. */
CUresult cuGetProcAddress(const char *symbol, void **pfn, int cuda_version, uint64_t flags) {
    FAKE_ENTER("cuGetProcAddress");
    int status = 0;
    CUresult result = resolve(symbol, pfn, cuda_version, flags, &status);
    return result == CUDA_SUCCESS && status != CU_GET_PROC_ADDRESS_SUCCESS ? CUDA_ERROR_NOT_FOUND : result;
}

/* The second form succeeds with a null pointer and says why in the status, which the caller may leave out. */
CUresult cuGetProcAddress_v2(const char *symbol, void **pfn, int cuda_version, uint64_t flags,
                             CUdriverProcAddressQueryResult *status) {
    FAKE_ENTER("cuGetProcAddress_v2");
    int unread;
    return resolve(symbol, pfn, cuda_version, flags, status != NULL ? status : &unread);
}

/* One private table that a test asks for; the driver's own are not imitated, so a runtime ends with an error here. */
CUresult cuGetExportTable(const void **table, const CUuuid *id) {
    static const void *const private_table[4] = {(const void *)sizeof private_table};
    bool known = id->bytes[0] == 1 && id->bytes[1] == 2 && id->bytes[2] == 3;
    *table = known ? private_table : NULL;
    return known ? CUDA_SUCCESS : CUDA_ERROR_NOT_FOUND;
}

CUresult cuGetErrorName(CUresult error, const char **text) {
    *text = error == CUDA_SUCCESS               ? "CUDA_SUCCESS"
            : error == CUDA_ERROR_OUT_OF_MEMORY ? "CUDA_ERROR_OUT_OF_MEMORY"
                                                : "CUDA_ERROR_UNKNOWN";
    return CUDA_SUCCESS;
}

CUresult cuGetErrorString(CUresult error, const char **text) {
    *text = error == CUDA_SUCCESS ? "no error" : error == CUDA_ERROR_OUT_OF_MEMORY ? "out of memory" : "unknown error";
    return CUDA_SUCCESS;
}
