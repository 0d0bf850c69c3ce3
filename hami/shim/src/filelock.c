#include "filelock.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

bool vgpu_file_size(int fd, int64_t *bytes) {
    /* fstat has a newer symbol version since glibc 2.33; lseek has not, and pipes and sockets fail on it. */
    off_t end = lseek(fd, 0, SEEK_END);
    *bytes = end;
    return end >= 0;
}

static struct flock byte_range(short type, int64_t offset, int64_t length) {
    struct flock range;
    memset(&range, 0, sizeof range);
    range.l_type = type;
    range.l_whence = SEEK_SET;
    range.l_start = (off_t)offset;
    range.l_len = (off_t)length;
    return range;
}

/*
 * Not by fcntl, which has a newer symbol version since glibc 2.28: images of Ubuntu 18.04 and CentOS 7 have older ones,
 * and a library that cannot be preloaded is passed over, with all limits.
 */
static int lock_call(int fd, int command, struct flock *range) {
    return (int)syscall(SYS_fcntl, fd, command, range);
}

bool vgpu_file_lock(int fd, int64_t offset) {
    struct flock range = byte_range(F_WRLCK, offset, 1);
    int result;
    do {
        result = lock_call(fd, F_OFD_SETLKW, &range);
    } while (result != 0 && errno == EINTR);
    return result == 0;
}

bool vgpu_file_try_lock(int fd, int64_t offset) {
    struct flock range = byte_range(F_WRLCK, offset, 1);
    return lock_call(fd, F_OFD_SETLK, &range) == 0;
}

void vgpu_file_unlock(int fd, int64_t offset) {
    struct flock range = byte_range(F_UNLCK, offset, 1);
    (void)lock_call(fd, F_OFD_SETLK, &range);
}

bool vgpu_file_range_locked(int fd, int64_t offset, int64_t length) {
    struct flock range = byte_range(F_WRLCK, offset, length);
    return lock_call(fd, F_OFD_GETLK, &range) != 0 || range.l_type != F_UNLCK;
}
