/* Which hook answers for which name, and the dlsym / dlvsym / cuGetProcAddress routes to it. */
#ifndef HAMI_SHIM_LOOKUP_H
#define HAMI_SHIM_LOOKUP_H

#include <stdint.h>

/*
 * Called by our exported dlsym and dlvsym (tailcall_*.S) before the real ones. Returns what the program shall get, or
 * NULL: then the assembly jumps to the real function with the caller's own frame, so that RTLD_NEXT still means "after
 * the caller" (spec/shim.md 1.3).
 */
#define VGPU_NOT_THERE ((void *)-1L) /* the program gets NULL, and the real function is not asked */
void *vgpu_lookup_dlsym(void *handle, const char *name);
void *vgpu_lookup_dlvsym(void *handle, const char *name, const char *version);

/*
 * The hook for what the driver answered to cuGetProcAddress(base, version, flags): the hook of exactly the exported
 * symbol at that address. Where no exported symbol has it, the table of versions decides. Without a hook: "answer".
 */
void *vgpu_lookup_answer(const char *base, void *answer, int version, uint64_t flags);

#endif
