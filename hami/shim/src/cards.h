/* The CUDA devices of this process, as cards of the container with their limits. */
#ifndef HAMI_SHIM_CARDS_H
#define HAMI_SHIM_CARDS_H

#include "config.h"
#include "cuda_min.h"
#include "member.h"

#define VGPU_MAX_VISIBLE 64

/* Fill one record per CUDA device, in CUDA order. Returns how many, or -1 while the driver is not initialised. */
int vgpu_find_cards(const vgpu_config_t *config, vgpu_card_t cards[VGPU_MAX_VISIBLE]);

/* "GPU-xxxxxxxx-xxxx-..." as NVML writes it. */
void vgpu_uuid_text(const CUuuid *uuid, char text[VGPU_UUID_LEN]);

#endif
