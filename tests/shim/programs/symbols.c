/* Addresses that the loader filled in for this program: the "link" way to the driver. Weak, so that one program starts
 * with drivers of every age. No CUDA header here: only addresses count. */
#include "symbols.h"

#define EXPORT(base, symbol, since, per_thread) __attribute__((weak)) void symbol(void);
#include "exports.def"
#undef EXPORT

#define EXPORT(base, symbol, since, per_thread) {#base, #symbol, since, per_thread, symbol},
const struct fake_export symbols[] = {
#include "exports.def"
};
const size_t symbol_count = sizeof symbols / sizeof symbols[0];
