/* Look up a function in a loaded library's own symbol table, without the dynamic loader's help. */
#ifndef HAMI_SHIM_ELFWALK_H
#define HAMI_SHIM_ELFWALK_H

/* Address of a function in the loaded C library (libc, or libdl where they are apart); NULL if there is none. */
void *vgpu_libc_symbol(const char *name);

#endif
