/* Reads the description of the stand-in cards and decides which of them this process may see. */
#include "config.h"
#include "card.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define MACHINE_CONFIG "/run/fake-gpu/cards.conf"

static struct fake_config config;
static int visible[FAKE_MAX_CARDS];
static int visible_count;
static pthread_once_t once = PTHREAD_ONCE_INIT;

static void card_defaults(struct fake_card *card, int index) {
    memset(card, 0, sizeof *card);
    snprintf(card->uuid, sizeof card->uuid, "GPU-%08x-0000-4000-8000-000000000000", index + 1);
    snprintf(card->name, sizeof card->name, "NVIDIA Stand-in");
    snprintf(card->pci, sizeof card->pci, "00000000:%02X:00.0", index + 1);
    card->memory_bytes = 16384 * FAKE_MIB;
    card->minor = index;
    card->cc_major = 8;
    card->sm_count = 108;
}

static void card_set(struct fake_card *card, const char *key, const char *value) {
    if (strcmp(key, "uuid") == 0) {
        snprintf(card->uuid, sizeof card->uuid, "%s", value);
    } else if (strcmp(key, "name") == 0) {
        snprintf(card->name, sizeof card->name, "%s", value);
        for (char *at = card->name; *at != '\0'; at++) {
            *at = *at == '_' ? ' ' : *at;
        }
    } else if (strcmp(key, "pci") == 0) {
        snprintf(card->pci, sizeof card->pci, "%s", value);
    } else if (strcmp(key, "memory_mib") == 0) {
        card->memory_bytes = strtoull(value, NULL, 10) * FAKE_MIB;
    } else if (strcmp(key, "reserved_mib") == 0) {
        card->reserved_bytes = strtoull(value, NULL, 10) * FAKE_MIB;
    } else if (strcmp(key, "context_kib") == 0) {
        card->context_bytes = strtoull(value, NULL, 10) * 1024;
    } else if (strcmp(key, "module_kib") == 0) {
        card->module_bytes = strtoull(value, NULL, 10) * 1024;
    } else if (strcmp(key, "minor") == 0) {
        card->minor = atoi(value);
    } else if (strcmp(key, "numa") == 0) {
        card->numa = atoi(value);
    } else if (strcmp(key, "cc") == 0) {
        sscanf(value, "%d.%d", &card->cc_major, &card->cc_minor);
    } else if (strcmp(key, "sm") == 0) {
        card->sm_count = atoi(value);
    } else if (strcmp(key, "utilization") == 0) {
        card->utilization_percent = atoi(value);
    } else if (strcmp(key, "mig") == 0) {
        card->mig = strcmp(value, "on") == 0 ? FAKE_MIG_ON : strcmp(value, "off") == 0 ? FAKE_MIG_OFF : card->mig;
    } else if (strcmp(key, "memory_query") == 0) {
        card->memory_query_unsupported = strcmp(value, "unsupported") == 0;
    }
}

static void read_card(char *rest) {
    if (config.count == FAKE_MAX_CARDS) {
        return;
    }
    struct fake_card *card = &config.cards[config.count];
    card_defaults(card, config.count++);
    char *save = NULL;
    for (char *word = strtok_r(rest, " \t", &save); word != NULL; word = strtok_r(NULL, " \t", &save)) {
        char *equals = strchr(word, '=');
        if (equals != NULL) {
            *equals = '\0';
            card_set(card, word, equals + 1);
        }
    }
}

static void read_line(char *line) {
    line[strcspn(line, "#\n")] = '\0';
    if (strncmp(line, "card", 4) == 0) {
        read_card(line + 4);
    } else if (sscanf(line, "driver %31s", config.driver_version) == 1) {
        return;
    } else if (sscanf(line, "cuda %d", &config.cuda_version) == 1) {
        return;
    } else if (sscanf(line, "proc %255s", config.proc_path) == 1) {
        return;
    } else {
        sscanf(line, "state %511s", config.state_path);
    }
}

static void read_file(const char *path) {
    snprintf(config.state_path, sizeof config.state_path, "%s.state", path);
    FILE *file = fopen(path, "re");
    if (file == NULL) {
        return;
    }
    char line[1024];
    while (fgets(line, sizeof line, file) != NULL) {
        read_line(line);
    }
    fclose(file);
}

static void show_all(void) {
    for (int i = 0; i < config.count; i++) {
        visible[visible_count++] = i;
    }
}

static void show_one(const char *word) {
    for (int i = 0; i < config.count; i++) {
        char index[12];
        snprintf(index, sizeof index, "%d", i);
        if (strcmp(word, index) == 0 || strcmp(word, config.cards[i].uuid) == 0) {
            visible[visible_count++] = i;
            return;
        }
    }
}

static void choose_visible(void) {
    const char *wanted = getenv("NVIDIA_VISIBLE_DEVICES");
    if (wanted == NULL || strcmp(wanted, "all") == 0) {
        show_all();
        return;
    }
    char words[FAKE_MAX_CARDS * 96];
    snprintf(words, sizeof words, "%s", wanted);
    char *save = NULL;
    for (char *word = strtok_r(words, ",", &save); word != NULL && visible_count < FAKE_MAX_CARDS;
         word = strtok_r(NULL, ",", &save)) {
        show_one(word);
    }
}

static void load(void) {
    snprintf(config.driver_version, sizeof config.driver_version, "550.54.15");
    config.cuda_version = 12040;
    snprintf(config.proc_path, sizeof config.proc_path, "/proc");
    const char *path = getenv("FAKE_GPU_CONFIG");
    if (path == NULL && access(MACHINE_CONFIG, R_OK) == 0) {
        path = MACHINE_CONFIG;
    }
    if (path != NULL) {
        read_file(path);
    } else {
        card_defaults(&config.cards[0], 0);
        config.count = 1;
    }
    choose_visible();
}

const struct fake_config *fake_config(void) {
    pthread_once(&once, load);
    return &config;
}

int fake_visible_count(void) {
    fake_config();
    return visible_count;
}

const struct fake_card *fake_visible_card(int index, int *machine_index) {
    if (index < 0 || index >= fake_visible_count()) {
        return NULL;
    }
    if (machine_index != NULL) {
        *machine_index = visible[index];
    }
    return &config.cards[visible[index]];
}

const char *fake_driver_version(void) {
    return fake_config()->driver_version;
}

int fake_nvml_cuda_version(void) {
    return fake_config()->cuda_version;
}

void fake_uuid_bytes(const char *text, unsigned char out[16]) {
    memset(out, 0, 16);
    int digits = 0;
    for (const char *at = strncmp(text, "GPU-", 4) == 0 ? text + 4 : text; *at != '\0' && digits < 32; at++) {
        const char *hex = "0123456789abcdef";
        const char *found = *at == '-' ? NULL : strchr(hex, *at | 0x20);
        if (found != NULL) {
            int value = (int)(found - hex);
            out[digits / 2] |= (unsigned char)(digits % 2 == 0 ? value << 4 : value);
            digits++;
        }
    }
}
