/* Reads one size a line and prints the bytes, or "refused". Linked to the shim's own parser, without the shim. */
#include "config.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

int main(void) {
    char line[4096];
    while (fgets(line, sizeof line, stdin) != NULL) {
        line[strcspn(line, "\n")] = '\0';
        uint64_t bytes = 0;
        const char *why = vgpu_parse_size(line, &bytes);
        if (why == NULL) {
            printf("%" PRIu64 "\n", bytes);
        } else {
            printf("refused\n");
        }
    }
    return 0;
}
