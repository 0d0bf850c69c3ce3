/* The parsed configuration, for the book of memory only; other files use card.h. */
#ifndef FAKE_CONFIG_H
#define FAKE_CONFIG_H

#include "card.h"

struct fake_config {
    int count;
    int cuda_version;
    char driver_version[32];
    char state_path[512];
    char proc_path[256];
    struct fake_card cards[FAKE_MAX_CARDS];
};

const struct fake_config *fake_config(void);

#endif
