/* The stand-in cards: what they are (a text file named by FAKE_GPU_CONFIG, else /run/fake-gpu/cards.conf where that
 * exists) and how much of their memory each process on the machine holds (a file shared by all of them). Both fake
 * libraries are built from this.
 *
 * Configuration file, one statement a line, '#' starts a comment:
 *   driver 550.54.15            driver version that NVML reports
 *   cuda 12040                  CUDA version that NVML reports (libcuda.so.1 has its own, one build a version)
 *   state /path/to/file         where the machine-wide book is kept (default: the configuration's path + ".state")
 *   proc /path/to/proc          the machine's procfs where /proc is a container's own: pids are the machine's, as a
 * real driver knows them card uuid=GPU-… name=NVIDIA_A100 memory_mib=40960 pci=00000000:3B:00.0 … Keys of a card: uuid,
 * name ('_' is shown as a space), memory_mib, reserved_mib, context_kib, module_kib, pci, minor, numa, cc (8.0), sm,
 * mig (unsupported, off, on), utilization (percent), memory_query (ok, unsupported), xid (events).
 */
#ifndef FAKE_CARD_H
#define FAKE_CARD_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define FAKE_MAX_CARDS     16
#define FAKE_MAX_PROCESSES 2048
#define FAKE_MIB           (1024ULL * 1024ULL)

enum fake_mig { FAKE_MIG_UNSUPPORTED, FAKE_MIG_OFF, FAKE_MIG_ON };

struct fake_card {
    char uuid[80];
    char name[96];
    char pci[32];
    uint64_t memory_bytes;
    uint64_t reserved_bytes;
    uint64_t context_bytes;
    uint64_t module_bytes;
    int minor;
    int numa;
    int cc_major;
    int cc_minor;
    int sm_count;
    int utilization_percent;
    enum fake_mig mig;
    bool memory_query_unsupported;
};

struct fake_process {
    int pid;
    uint64_t bytes;
};

/* Number of cards that NVIDIA_VISIBLE_DEVICES lets this process see, as the container runtime would. */
int fake_visible_count(void);
/* The card behind a visible index (0 … count − 1); its machine index is the one the book is kept by. */
const struct fake_card *fake_visible_card(int index, int *machine_index);
const char *fake_driver_version(void);
int fake_nvml_cuda_version(void);
/* The 16 bytes that CUDA shows for a UUID text. */
void fake_uuid_bytes(const char *text, unsigned char out[16]);

/* Takes bytes on a card for the calling process; false when the card is full. */
bool fake_take(int machine_index, uint64_t bytes);
void fake_give(int machine_index, uint64_t bytes);
/* Bytes held on a card by all living processes; those of dead ones are dropped first. */
uint64_t fake_used(int machine_index);
/* Bytes that could still be taken on a card. */
uint64_t fake_room(int machine_index);
uint64_t fake_used_by_me(int machine_index);
int fake_processes(int machine_index, struct fake_process *out, int capacity);

/* Error injection. FAKE_GPU_FAIL="name:nth:code,…" makes the nth call (1…, 0 = every call) of a function return code;
 * FAKE_GPU_KILL="name:nth" kills the process with SIGKILL in the nth call; FAKE_GPU_DELAY_US="name:us" makes every
 * call take longer. Returns the code or 0. */
int fake_fault(const char *function);
extern bool fake_faults_armed;
/* Calls so far of a function that FAKE_GPU_FAIL, FAKE_GPU_KILL or FAKE_GPU_DELAY_US names. */
uint64_t fake_calls(const char *function);

#define FAKE_ENTER(function)                                                                                           \
    do {                                                                                                               \
        if (fake_faults_armed) {                                                                                       \
            int fault_ = fake_fault(function);                                                                         \
            if (fault_ != 0) {                                                                                         \
                return fault_;                                                                                         \
            }                                                                                                          \
        }                                                                                                              \
    } while (0)

#endif
