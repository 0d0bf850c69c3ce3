/* Damaged mounted files and environments through the limiter's own readers, built with sanitizers.
 * usage: fuzz_config SECONDS SEED. Whatever an environment says, it never lifts what a mounted file limits. */
#include "config.h"

#include "mutate.h"

enum { TEXT = 6000, LINES = 12, CARDS = 3 };

static const char *const words[] = {
    "CUDA_DEVICE_MEMORY_LIMIT",
    "CUDA_DEVICE_MEMORY_LIMIT_0=3000m\n",
    "CUDA_DEVICE_MEMORY_LIMIT_1=1g\n",
    "CUDA_DEVICE_MEMORY_LIMIT=512m\n",
    "CUDA_DEVICE_MEMORY_LIMIT_GPU-00000000-1111-4222-8333-444444444444=2000m\n",
    "CUDA_DEVICE_SM_LIMIT=30\n",
    "CUDA_DEVICE_SM_LIMIT_0=101\n",
    "CUDA_DEVICE_MEMORY_SHARED_CACHE=/tmp/a\n",
    "NVIDIA_VISIBLE_DEVICES=GPU-00000000-1111-4222-8333-444444444444,GPU-1\n",
    "CUDA_VISIBLE_DEVICES=1,0\n",
    "CUDA_OVERSUBSCRIBE=true\n",
    "CUDA_TASK_PRIORITY=1\n",
    "VGPU_FAILURE_POLICY=open\n",
    "VGPU_CONTEXT_SIZE=300m\n",
    "LIBCUDA_LOG_LEVEL=4\n",
    "=",
    "\n",
    "#",
    "_",
    "_0",
    "_15=",
    "_16=",
    "_-1=",
    "_GPU-",
    "18446744073709551615",
    "0",
    "-",
    "1.5g",
    " ",
    "99999999999999999999t",
};
static const uint32_t word_count = sizeof words / sizeof *words;
static const char *const uuids[CARDS] = {"GPU-00000000-1111-4222-8333-444444444444", "GPU-1", ""};

static void some_text(char *text) {
    text[0] = '\0';
    for (uint32_t n = below(8); n > 0; n--) {
        strcat(text, words[below(word_count)]);
    }
    damage_text(text, TEXT, words, word_count);
}

/* The same kind of text as NAME=VALUE strings; returns how many. */
static int some_environment(char *text, char **environment) {
    int count = 0;
    some_text(text);
    for (char *line = strtok(text, "\n"); line != NULL && count < LINES; line = strtok(NULL, "\n")) {
        environment[count++] = line;
    }
    environment[count] = NULL;
    return count;
}

static void compare(const vgpu_config_t *alone, const vgpu_config_t *both) {
    MUST(!alone->refused || both->refused);
    MUST(alone->fail_open == both->fail_open);
    MUST(strcmp(alone->region_path, both->region_path) == 0);
    MUST(memchr(both->reason, '\0', sizeof both->reason) != NULL);
    if (both->refused) {
        MUST(both->reason[0] != '\0');
        return;
    }
    for (int card = 0; card < VGPU_MAX_DEVICES; card++) {
        uint32_t owner = alone->core_limit[card];
        uint32_t limit = both->core_limit[card];
        MUST(owner == 0 || owner == 100 || (limit != 0 && limit <= owner));
    }
    for (int card = 0; card < CARDS; card++) {
        uint64_t owner = vgpu_config_limit(alone, uuids[card], card, card);
        uint64_t limit = vgpu_config_limit(both, uuids[card], card, card);
        MUST(owner == 0 || (limit != 0 && limit <= owner));
    }
}

int main(int argc, char **argv) {
    static char file[TEXT];
    static char text[TEXT];
    static vgpu_config_t alone;
    static vgpu_config_t both;
    char *nothing[] = {NULL};
    char *environment[LINES + 1];
    time_t end = now_s() + (argc > 1 ? atoi(argv[1]) : 1);
    random_state = argc > 2 ? strtoull(argv[2], NULL, 10) : 1;
    for (; rounds % 256 != 0 || now_s() < end; rounds++) {
        some_text(file);
        some_environment(text, environment);
        vgpu_config_build(&both, environment, NULL);
        vgpu_config_card(&both, uuids[below(CARDS)]);
        vgpu_config_build(&alone, nothing, file);
        vgpu_config_build(&both, environment, file);
        compare(&alone, &both);
    }
    printf("well %llu\n", (unsigned long long)rounds);
    return 0;
}
