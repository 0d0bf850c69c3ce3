#include "elfwalk.h"

#include <elf.h>
#include <link.h>
#include <stdbool.h>
#include <stdint.h>

#include "text.h"

_Static_assert(sizeof(void *) == 8, "64-bit libraries only");

typedef struct {
    const Elf64_Sym *symbols;
    const char *strings;
    const uint32_t *gnu_hash;
    const uint32_t *sysv_hash;
} tables_t;

/* glibc relocates the pointers of the dynamic section in place, other loaders leave offsets. */
static const void *address(Elf64_Addr base, Elf64_Addr value) {
    return (const void *)(value < base ? base + value : value);
}

static bool read_tables(const struct link_map *library, tables_t *tables) {
    *tables = (tables_t){0};
    for (const Elf64_Dyn *dynamic = library->l_ld; dynamic != NULL && dynamic->d_tag != DT_NULL; dynamic++) {
        const void *pointer = address(library->l_addr, dynamic->d_un.d_ptr);
        if (dynamic->d_tag == DT_SYMTAB) {
            tables->symbols = pointer;
        } else if (dynamic->d_tag == DT_STRTAB) {
            tables->strings = pointer;
        } else if (dynamic->d_tag == DT_GNU_HASH) {
            tables->gnu_hash = pointer;
        } else if (dynamic->d_tag == DT_HASH) {
            tables->sysv_hash = pointer;
        }
    }
    return tables->symbols != NULL && tables->strings != NULL;
}

static bool is_function(const tables_t *tables, uint32_t index, const char *name) {
    const Elf64_Sym *symbol = &tables->symbols[index];
    return symbol->st_shndx != SHN_UNDEF && (symbol->st_info & 0xf) == STT_FUNC &&
           text_equal(tables->strings + symbol->st_name, name);
}

static uint32_t gnu_lookup(const tables_t *tables, const char *name) {
    uint32_t hash = 5381;
    for (const unsigned char *c = (const unsigned char *)name; *c != '\0'; c++) {
        hash = hash * 33 + *c;
    }
    const uint32_t *header = tables->gnu_hash;
    uint32_t bucket_count = header[0];
    uint32_t first = header[1];
    const uint32_t *buckets = header + 4 + header[2] * (sizeof(Elf64_Addr) / 4);
    const uint32_t *chain = buckets + bucket_count;
    uint32_t index = bucket_count == 0 ? 0 : buckets[hash % bucket_count];
    for (; index >= first && index != 0; index++) {
        uint32_t entry = chain[index - first];
        if ((entry | 1) == (hash | 1) && is_function(tables, index, name)) {
            return index;
        }
        if ((entry & 1) != 0) {
            break;
        }
    }
    return 0;
}

static uint32_t linear_lookup(const tables_t *tables, const char *name) {
    for (uint32_t index = 1; index < tables->sysv_hash[1]; index++) {
        if (is_function(tables, index, name)) {
            return index;
        }
    }
    return 0;
}

static bool c_library(const char *path) {
    const char *file = path;
    for (const char *c = path; *c != '\0'; c++) {
        file = *c == '/' ? c + 1 : file;
    }
    return text_starts(file, "libc.so") || text_starts(file, "libc-") || text_starts(file, "libdl") ||
           text_starts(file, "ld-musl");
}

static void *search(const struct link_map *library, const char *name) {
    tables_t tables;
    uint32_t index = 0;
    if (!read_tables(library, &tables)) {
        return NULL;
    }
    if (tables.gnu_hash != NULL) {
        index = gnu_lookup(&tables, name);
    } else if (tables.sysv_hash != NULL) {
        index = linear_lookup(&tables, name);
    }
    return index == 0 ? NULL : (void *)(library->l_addr + tables.symbols[index].st_value);
}

/*
 * The loader's own list for debuggers, not dl_iterate_phdr: a sanitizer's runtime replaces that function too. The C
 * library stands near the head of the list, which only grows at its end.
 */
void *vgpu_libc_symbol(const char *name) {
    void *found = NULL;
    for (const struct link_map *library = _r_debug.r_map; library != NULL && found == NULL; library = library->l_next) {
        if (library->l_name != NULL && c_library(library->l_name)) {
            found = search(library, name);
        }
    }
    return found;
}
