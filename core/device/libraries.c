/* libraries.c: what a plugin needs, where that lies, and opening it in order.  See libraries.h. */
#include "device/libraries.h"

#include <dirent.h>
#include <dlfcn.h>
#include <fcntl.h>
#include <link.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/locale.h"
#include "base/status.h"

enum {
    PATH_BYTES = 4096,
    DEEPEST = 4 /* needs of needs: libcudnn_ops needs libcublas, which needs libcublasLt */
};

/* ---- the needs of a file ------------------------------------------------------------------------------ */

typedef struct image {
    const char *bytes;
    size_t size;
    const ElfW(Phdr) * segments;
    size_t nsegments;
} image;

/* `count` things of `size` bytes at an offset of the file; NULL where they do not lie in it. */
static const void *part(const image *file, uint64_t offset, uint64_t count, size_t size) {
    const bool fits = offset <= file->size && count <= (file->size - offset) / size;
    return fits && offset % _Alignof(ElfW(Addr)) == 0 ? file->bytes + offset : NULL;
}

static bool read_header(image *file) {
    const ElfW(Ehdr) *header = part(file, 0, 1, sizeof *header);
    const char width = sizeof(void *) == 8 ? ELFCLASS64 : ELFCLASS32;
    if (!header || memcmp(header->e_ident, ELFMAG, SELFMAG) != 0 || header->e_ident[EI_CLASS] != width) return false;
    if (header->e_phentsize != sizeof *file->segments) return false;
    file->nsegments = header->e_phnum;
    file->segments = part(file, header->e_phoff, header->e_phnum, sizeof *file->segments);
    return file->segments != NULL;
}

/* The text at an address of the program, or NULL. */
static const char *text_at(const image *file, uint64_t address) {
    for (size_t i = 0; i < file->nsegments; i++) {
        const ElfW(Phdr) *s = &file->segments[i];
        if (s->p_type != PT_LOAD || address < s->p_vaddr || address - s->p_vaddr >= s->p_filesz) continue;
        const uint64_t offset = s->p_offset + (address - s->p_vaddr);
        const bool ends = offset < file->size && memchr(file->bytes + offset, 0, file->size - offset);
        return ends ? file->bytes + offset : NULL;
    }
    return NULL;
}

static int32_t read_needs(const image *file, char names[CF_MAX_NEEDS][CF_SONAME_BYTES]) {
    const ElfW(Dyn) *entries = NULL;
    size_t nentries = 0;
    for (size_t i = 0; i < file->nsegments; i++) {
        if (file->segments[i].p_type != PT_DYNAMIC) continue;
        nentries = file->segments[i].p_filesz / sizeof *entries;
        entries = part(file, file->segments[i].p_offset, nentries, sizeof *entries);
    }
    uint64_t strings = 0;
    for (size_t i = 0; entries && i < nentries; i++)
        if (entries[i].d_tag == DT_STRTAB) strings = entries[i].d_un.d_ptr;
    int32_t n = 0;
    for (size_t i = 0; entries && i < nentries && n < CF_MAX_NEEDS; i++) {
        if (entries[i].d_tag != DT_NEEDED) continue;
        const char *name = text_at(file, strings + entries[i].d_un.d_val);
        if (name && strlen(name) < CF_SONAME_BYTES) strcpy(names[n++], name);
    }
    return n;
}

int32_t cf_library_needs(const char *path, char names[CF_MAX_NEEDS][CF_SONAME_BYTES]) {
    struct stat about;
    int32_t n = 0;
    const int file = open(path, O_RDONLY | O_CLOEXEC);
    if (file < 0) return 0;
    if (fstat(file, &about) == 0 && S_ISREG(about.st_mode) && about.st_size > 0) {
        image whole = {.size = (size_t)about.st_size};
        void *bytes = mmap(NULL, whole.size, PROT_READ, MAP_PRIVATE, file, 0);
        if (bytes != MAP_FAILED) {
            whole.bytes = bytes;
            if (read_header(&whole)) n = read_needs(&whole, names);
            munmap(bytes, whole.size);
        }
    }
    close(file);
    return n;
}

/* ---- where it lies ------------------------------------------------------------------------------------ */

static bool is_file(const char *directory, const char *below, const char *name, char *path, size_t room) {
    const int length = snprintf(path, room, "%s%s/%s", directory, below, name);
    return length > 0 && (size_t)length < room && access(path, R_OK) == 0;
}

static bool in_root(const char *directory, const char *name, char *path, size_t room) {
    return is_file(directory, "/lib64", name, path, room) || is_file(directory, "/lib", name, path, room);
}

/* Looks in the roots that are entries of `directory` and begin with `prefix`. */
static bool in_entries(const char *directory, const char *prefix, const char *name, char *path, size_t room) {
    struct dirent **entries;
    bool found = false;
    const int n = scandir(directory, &entries, NULL, alphasort);
    for (int i = 0; i < n; i++) {
        char root[PATH_BYTES];
        const char *entry = entries[i]->d_name;
        const int length = snprintf(root, sizeof root, "%s/%s", directory, entry);
        const bool wanted = *entry != '.' && strncmp(entry, prefix, strlen(prefix)) == 0;
        found = found || (wanted && length < PATH_BYTES && in_root(root, name, path, room));
        free(entries[i]);
    }
    if (n >= 0) free(entries);
    return found;
}

static bool in_item(char *item, const char *name, char *path, size_t room) {
    char *star = strchr(item, '*'), *slash = strrchr(item, '/'), wheels[PATH_BYTES + 8];
    if (star && !star[1] && slash) {
        *star = *slash = 0;
        return in_entries(item, slash + 1, name, path, room);
    }
    snprintf(wheels, sizeof wheels, "%s/nvidia", item);
    return is_file(item, "", name, path, room) || in_root(item, name, path, room) ||
           in_entries(wheels, "", name, path, room);
}

bool cf_library_find(const char *name, const char *search, char *path, size_t room) {
    while (search && *search) {
        const size_t length = strcspn(search, ":");
        char item[PATH_BYTES];
        if (length > 0 && length < sizeof item) {
            memcpy(item, search, length);
            item[length] = 0;
            if (in_item(item, name, path, room)) return true;
        }
        search += length + (search[length] == ':');
    }
    return false;
}

/* ---- opening ------------------------------------------------------------------------------------------ */

/* Opens what the file `path` needs, and what that needs, as far as it is on `search` and not in the process yet.  One
 * that is found and does not open is the reason why the plugin will not. */
static void open_needs(const char *path, const char *search, int depth, char *why, size_t room) {
    char names[CF_MAX_NEEDS][CF_SONAME_BYTES], found[PATH_BYTES];
    const int32_t n = cf_library_needs(path, names);
    for (int32_t i = 0; i < n; i++) {
        if (dlopen(names[i], RTLD_LAZY | RTLD_NOLOAD)) continue;
        if (!cf_library_find(names[i], search, found, sizeof found)) continue;
        if (depth < DEEPEST) open_needs(found, search, depth + 1, why, room);
        if (!dlopen(found, RTLD_NOW | RTLD_LOCAL) && !*why) cf_format_dlerror(why, room);
    }
}

/* A file by its path; a mere name first on `search`, then where the loader looks. */
static void *open_from(const char *name, const char *search, char *why, size_t room) {
    char found[PATH_BYTES];
    if (!strchr(name, '/') && cf_library_find(name, search, found, sizeof found)) name = found;
    open_needs(name, search, 0, why, room);
    return dlopen(name, RTLD_NOW | RTLD_LOCAL);
}

void *cf_library_open(const char *name, char *why, size_t room) {
    char usual[PATH_BYTES];
    const char *home = getenv("CUDA_HOME");
    snprintf(usual, sizeof usual, "%s:/usr/local/cuda*", home ? home : "");
    const char *const tries[] = {getenv("CONFLUX_CUDA_PATH"), usual};
    *why = 0;
    for (int i = 0; i < 2; i++) {
        void *library = open_from(name, tries[i], why, room);
        if (library) return library;
    }
    /* The loader's message begins with the name of what it did not find: the plugin, or what the plugin needs. */
    if (!*why) cf_format_dlerror(why, room);
    if (!strchr(name, '/') || strncmp(why, name, strlen(name)) != 0) {
        const size_t length = strlen(why);
        snprintf(why + length, room - length, "; CONFLUX_CUDA_PATH may list where CUDA's libraries are%s",
                 ": directories of libraries, toolkits, site-packages");
    }
    return NULL;
}

CFX_API void *cfx_library_open(const char *name) {
    char why[512];
    void *library = cf_library_open(name, why, sizeof why);
    if (!library) cf_message("%s", why);
    return library;
}
