/* Readers of single values; see config.h for the two that are used elsewhere. */
#ifndef HAMI_SHIM_PARSE_H
#define HAMI_SHIM_PARSE_H

#include <stdbool.h>

/* The values that mean "yes": those Go's ParseBool takes, as the device plugin does. */
bool vgpu_parse_true(const char *text);

/* A whole number that fits an int with nothing behind it, or "otherwise". (strtol would bind us to a new glibc.) */
int vgpu_parse_int(const char *text, int otherwise);

#endif
