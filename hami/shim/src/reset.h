/* What groups of hooks remember besides the book, to be dropped in a fork child; also locks that a lost thread held. */
#ifndef HAMI_SHIM_RESET_H
#define HAMI_SHIM_RESET_H

void vgpu_reset_contexts(void);
void vgpu_reset_graphs(void);
void vgpu_reset_pools(void);
void vgpu_reset_vmm(void);

#endif
