/* Addresses of all symbols. Their prototypes do not matter here, so this file includes no CUDA header. */
#include "exports.h"

#define EXPORT(base, symbol, since, per_thread) void symbol(void);
#include "exports.def"
#undef EXPORT

#define EXPORT(base, symbol, since, per_thread) {#base, #symbol, since, per_thread, symbol},
const struct fake_export fake_exports[] = {
#include "exports.def"
};
const size_t fake_export_count = sizeof fake_exports / sizeof fake_exports[0];
