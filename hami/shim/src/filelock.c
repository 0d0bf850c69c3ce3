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

bool vgpu_file_lock(int fd, int64_t offset) {
    struct flock range = byte_range(F_WRLCK, offset, 1);
    int result;
    do {
        result = fcntl(fd, F_OFD_SETLKW, &range);
    } while (result != 0 && errno == EINTR);
    return result == 0;
}

bool vgpu_file_try_lock(int fd, int64_t offset) {
    struct flock range = byte_range(F_WRLCK, offset, 1);
    return fcntl(fd, F_OFD_SETLK, &range) == 0;
}

void vgpu_file_unlock(int fd, int64_t offset) {
    struct flock range = byte_range(F_UNLCK, offset, 1);
    (void)fcntl(fd, F_OFD_SETLK, &range);
}

bool vgpu_file_range_locked(int fd, int64_t offset, int64_t length) {
    struct flock range = byte_range(F_WRLCK, offset, length);
    return fcntl(fd, F_OFD_GETLK, &range) != 0 || range.l_type != F_UNLCK;
}
