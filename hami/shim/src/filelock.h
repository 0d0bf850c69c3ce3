/* Byte locks of an open file description, and file size without the versioned stat symbols of new C libraries. */
#ifndef HAMI_SHIM_FILELOCK_H
#define HAMI_SHIM_FILELOCK_H

#include <stdbool.h>
#include <stdint.h>

/* Length of a file; false for what has none (pipes, sockets). */
bool vgpu_file_size(int fd, int64_t *bytes);

/* Wait for an exclusive lock on one byte. */
bool vgpu_file_lock(int fd, int64_t offset);
bool vgpu_file_try_lock(int fd, int64_t offset);
void vgpu_file_unlock(int fd, int64_t offset);

/* Does another description hold a lock in this range? True when the kernel cannot say. */
bool vgpu_file_range_locked(int fd, int64_t offset, int64_t length);

#endif
