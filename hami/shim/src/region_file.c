#include "region_file.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include "filelock.h"
#include "log.h"

#define SEMAPHORE_SHARED 128 /* second word of a process-shared semaphore in glibc's 64-bit layout */

/*
 * Existing files are opened without O_CREAT: in a sticky folder the kernel refuses O_CREAT on another user's file
 * (fs.protected_regular), and a process may have changed its user.
 */
static int open_or_create(const char *path, bool *created) {
    *created = false;
    for (int attempt = 0; attempt < 10; attempt++) {
        int fd = open(path, O_RDWR | O_CLOEXEC | O_NOFOLLOW);
        if (fd >= 0 || errno != ENOENT) {
            return fd;
        }
        fd = open(path, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
        *created = fd >= 0;
        if (fd >= 0 || errno != EEXIST) {
            return fd;
        }
    }
    return -1;
}

int vgpu_region_open(const char *path, const char **why) {
    bool created;
    int64_t bytes;
    int fd = open_or_create(path, &created);
    if (fd < 0) {
        *why = strerror(errno);
        return -1;
    }
    if (!vgpu_file_size(fd, &bytes)) {
        *why = "not a regular file";
        close(fd);
        return -1;
    }
    /* For all users of the container. The program's umask is not ours to change, so widen the mode afterwards. */
    if ((created || bytes == 0) && fchmod(fd, 0666) != 0) {
        vgpu_log(LOG_DEBUG, "region mode not widened: %s", strerror(errno));
    }
    return fd;
}

/* Reserve all blocks now: a full disk is an error here and would be SIGBUS later. */
bool vgpu_region_grow(int fd, const char **why) {
    int64_t bytes;
    if (vgpu_file_size(fd, &bytes) && bytes >= (int64_t)sizeof(vgpu_region_t)) {
        return true;
    }
    struct rlimit largest;
    if (getrlimit(RLIMIT_FSIZE, &largest) == 0 && largest.rlim_cur < sizeof(vgpu_region_t)) {
        *why = "the largest file that this process may write (ulimit -f) is too small"; /* and trying ends it */
        return false;
    }
    int error = posix_fallocate(fd, 0, (off_t)sizeof(vgpu_region_t));
    if (error != 0) {
        *why = strerror(error);
    }
    return error == 0;
}

bool vgpu_region_valid(const vgpu_region_t *region) {
    return region->initialized == VGPU_REGION_MAGIC && region->major_version == 1 && region->minor_version == 2 &&
           region->tail.magic == VGPU_TAIL_MAGIC && region->tail.version == VGPU_TAIL_VERSION &&
           region->tail.size == sizeof(vgpu_tail_t) && region->tail.slot_high <= VGPU_MAX_SLOTS;
}

static void init_semaphore(uint64_t *words) {
    words[0] = 1;
    words[1] = SEMAPHORE_SHARED;
}

/* Start afresh; the caller holds the init lock and nobody is alive. */
void vgpu_region_init(vgpu_region_t *region, int32_t priority) {
    __atomic_store_n(&region->initialized, 0, __ATOMIC_SEQ_CST);
    if (region->tail.magic == VGPU_TAIL_MAGIC && region->tail.slot_high <= VGPU_MAX_SLOTS) {
        /* Ours from before: only slots below the mark were ever written, and 2 MB need not be touched again. */
        memset(region->procs, 0, region->tail.slot_high * sizeof(vgpu_slot_t));
        memset(region, 0, offsetof(vgpu_region_t, procs));
        memset(&region->proc_count, 0, offsetof(vgpu_region_t, gap) - offsetof(vgpu_region_t, proc_count));
        memset(&region->tail, 0, sizeof region->tail);
    } else {
        memset(region, 0, sizeof *region);
    }
    init_semaphore(region->semaphore);
    init_semaphore(region->post_init_semaphore);
    region->major_version = 1;
    region->minor_version = 2;
    region->utilization_switch = 1;
    region->recent_kernel = 2;
    region->priority = priority;
    for (int i = 0; i < VGPU_MAX_DEVICES; i++) {
        region->core_limit[i] = 100;
    }
    region->tail.version = VGPU_TAIL_VERSION;
    region->tail.size = sizeof(vgpu_tail_t);
    region->tail.magic = VGPU_TAIL_MAGIC;
    __atomic_store_n(&region->initialized, VGPU_REGION_MAGIC, __ATOMIC_RELEASE);
}

const vgpu_region_t *vgpu_region_view(const char *path) {
    int saved = errno;
    const vgpu_region_t *region = NULL;
    int64_t bytes;
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK); /* a pipe there would keep us waiting */
    if (fd >= 0 && vgpu_file_size(fd, &bytes) && bytes >= (int64_t)sizeof *region) {
        void *map = mmap(NULL, sizeof *region, PROT_READ, MAP_SHARED, fd, 0);
        if (map != MAP_FAILED && vgpu_region_valid(map)) {
            region = map;
        } else if (map != MAP_FAILED) {
            munmap(map, sizeof *region);
        }
    }
    if (fd >= 0) {
        close(fd);
    }
    errno = saved;
    return region;
}
