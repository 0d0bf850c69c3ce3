#include "cards.h"

#include <stdio.h>
#include <string.h>

#include "driver.h"
#include "log.h"
#include "nvml_use.h"
#include "parse.h"

void vgpu_uuid_text(const CUuuid *uuid, char text[VGPU_UUID_LEN]) {
    const unsigned char *b = (const unsigned char *)uuid->bytes;
    memset(text, 0, VGPU_UUID_LEN);
    snprintf(text, VGPU_UUID_LEN, "GPU-%02x%02x%02x%02x-%02x%02x-%02x%02x-%02x%02x-%02x%02x%02x%02x%02x%02x", b[0],
             b[1], b[2], b[3], b[4], b[5], b[6], b[7], b[8], b[9], b[10], b[11], b[12], b[13], b[14], b[15]);
}

/* The ordinal-th item of CUDA_VISIBLE_DEVICES where it is a plain number. */
static int listed_index(const char *list, int ordinal) {
    for (int i = 0; i < ordinal; i++) {
        list += strcspn(list, ",");
        list += *list == ',' ? 1 : 0;
    }
    char item[16];
    size_t length = strcspn(list, ",");
    if (length == 0 || length >= sizeof item) {
        return -1;
    }
    memcpy(item, list, length);
    item[length] = '\0';
    return vgpu_parse_int(item, -1);
}

/* Starting NVML costs milliseconds: only where the order of the cards is in doubt. */
static bool order_in_doubt(const vgpu_config_t *config, const vgpu_card_t *cards, int count) {
    bool all_listed = true;
    for (int i = 0; i < count; i++) {
        all_listed = all_listed && cards[i].card >= 0;
    }
    return !all_listed && (count > 1 || config->cuda_visible[0] != '\0');
}

static void number_cards(const vgpu_config_t *config, vgpu_card_t *cards, int count) {
    for (int i = 0; i < count; i++) {
        cards[i].card = vgpu_config_card(config, cards[i].uuid);
    }
    bool doubt = order_in_doubt(config, cards, count);
    bool nvml = doubt && vgpu_nvml_start();
    for (int i = 0; i < count; i++) {
        if (cards[i].card < 0 && nvml) {
            cards[i].card = vgpu_nvml_index(cards[i].uuid);
        }
        if (cards[i].card < 0 && config->cuda_visible[0] != '\0') {
            cards[i].card = listed_index(config->cuda_visible, i);
        }
        if (cards[i].card < 0) {
            cards[i].card = i;
        }
    }
    if (nvml) {
        vgpu_nvml_stop();
    }
}

int vgpu_find_cards(const vgpu_config_t *config, vgpu_card_t cards[VGPU_MAX_VISIBLE]) {
    __typeof__(&cuDeviceGetCount) get_count = DRIVER(cuDeviceGetCount);
    __typeof__(&cuDeviceGet) get = DRIVER(cuDeviceGet);
    __typeof__(&cuDeviceGetUuid) get_uuid = DRIVER(cuDeviceGetUuid);
    int count = 0;
    if (get_count == NULL || get == NULL || get_count(&count) != CUDA_SUCCESS) {
        return -1;
    }
    count = count > VGPU_MAX_VISIBLE ? VGPU_MAX_VISIBLE : count;
    for (int i = 0; i < count; i++) {
        CUdevice device;
        CUuuid uuid;
        memset(&cards[i], 0, sizeof cards[i]);
        if (get_uuid != NULL && get(&device, i) == CUDA_SUCCESS && get_uuid(&uuid, device) == CUDA_SUCCESS) {
            vgpu_uuid_text(&uuid, cards[i].uuid);
        } else {
            snprintf(cards[i].uuid, sizeof cards[i].uuid, "device-%d", i); /* still counted, by its number */
        }
    }
    number_cards(config, cards, count);
    for (int i = 0; i < count; i++) {
        int card = cards[i].card;
        cards[i].limit = vgpu_config_limit(config, cards[i].uuid, card, i);
        cards[i].mounted = config->from_file;
        cards[i].core_limit = config->core_limit[card < VGPU_MAX_DEVICES ? card : 0];
        vgpu_log(LOG_INFO, "device %d is card %d (%s), limit %llu bytes", i, card, cards[i].uuid,
                 (unsigned long long)cards[i].limit);
    }
    return count;
}
