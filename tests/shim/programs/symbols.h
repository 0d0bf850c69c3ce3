/* The names a program may use, with the versions by which cuGetProcAddress knows them. */
#ifndef SHIM_SYMBOLS_H
#define SHIM_SYMBOLS_H

#include "exports.h"

extern const struct fake_export symbols[];
extern const size_t symbol_count;

enum way { WAY_LINK, WAY_DLSYM, WAY_DEFAULT, WAY_NEXT, WAY_DLVSYM, WAY_NESTED, WAY_PROC1, WAY_PROC2, WAY_COUNT };

/* The address that a program gets for a driver symbol by the way chosen with use_way; NULL when the driver lacks it. */
void *find(const char *symbol);
void use_way(enum way way);
const char *way_name(enum way way);

#define CALL(symbol) ((__typeof__(symbol) *)find(#symbol))

#endif
