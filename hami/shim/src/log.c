#include "log.h"

#include <stdarg.h>
#include <stdio.h>
#include <unistd.h>

int vgpu_log_level = LOG_ERROR;

void vgpu_log(int level, const char *format, ...) {
    if (level > vgpu_log_level) {
        return;
    }
    static const char *const names[] = {"", "error", "warning", "info", "debug"};
    char line[512];
    int used = snprintf(line, sizeof line, "vgpu: %s: ", names[level]);
    va_list args;
    va_start(args, format);
    int body = vsnprintf(line + used, sizeof line - (size_t)used - 1, format, args);
    va_end(args);
    size_t length = (size_t)used + (body < 0 ? 0 : (size_t)body);
    if (length > sizeof line - 2) {
        length = sizeof line - 2;
    }
    line[length++] = '\n';
    /* One write, unbuffered: stdio of the program is not ours to touch, and a lost message must not stop anything. */
    ssize_t written = write(STDERR_FILENO, line, length);
    (void)written;
}
