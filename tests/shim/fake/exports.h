/* The table made from exports.def. */
#ifndef FAKE_EXPORTS_H
#define FAKE_EXPORTS_H

#include <stddef.h>

struct fake_export {
    const char *base;
    const char *symbol;
    int since;
    int per_thread;
    void (*address)(void);
};

extern const struct fake_export fake_exports[];
extern const size_t fake_export_count;

#endif
