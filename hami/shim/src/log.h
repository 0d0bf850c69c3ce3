/* Messages on standard error, silent at the default level except for errors (spec/shim.md 12, failure policy). */
#ifndef HAMI_SHIM_LOG_H
#define HAMI_SHIM_LOG_H

enum { LOG_ERROR = 1, LOG_WARNING = 2, LOG_INFO = 3, LOG_DEBUG = 4 };

/* Threshold, from LIBCUDA_LOG_LEVEL: messages above it are dropped. */
extern int vgpu_log_level;

__attribute__((format(printf, 2, 3))) void vgpu_log(int level, const char *format, ...);

#endif
