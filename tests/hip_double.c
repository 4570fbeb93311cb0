/* For tests: HIP's library on a machine with one GPU whose memory is this process's. Kernels are the test's business, by
   hooks; calls are written down. */

#include <stdlib.h>
#include <string.h>

enum { SUCCESS = 0, INVALID = 1, OUT_OF_MEMORY = 2, NO_DEVICE = 100, NO_BINARY = 209, NOT_FOUND = 500 };

typedef struct node { void *function; unsigned grid[3], block; int count; unsigned long long values[64]; struct node *next; } node;
typedef struct graph { node *first, **last; int executable; } graph;

static char calls[1 << 20];
static size_t written;
static char architecture[256] = "gfx942:sramecc+:xnack-";
static int devices = 1, live;
static graph *capturing;
static int stream_, module_;

static void *(*load_)(const void *);
static void *(*function_)(const char *);
static int (*count_)(void *);
static void (*launch_)(void *, unsigned, unsigned, unsigned, const unsigned long long *);

static int said(const char *name, int status) {
    size_t length = strlen(name);
    if (written + length + 2 < sizeof calls) {
        memcpy(calls + written, name, length);
        written += length;
        calls[written++] = '\n';
        calls[written] = 0;
    }
    return status;
}
#define SAID(status) return said(__func__, status)

const char *double_calls(void) { return calls; }
void double_forget(void) { calls[written = 0] = 0; }
int double_live(void) { return live; }
void double_set(const char *name, int count) { strncpy(architecture, name, 255); devices = count; }
void double_hooks(void *load, void *function, void *count, void *launch) {
    load_ = load, function_ = function, count_ = count, launch_ = launch;
}

const char *hipGetErrorName(int status) {
    switch (status) {
    case INVALID: return "hipErrorInvalidValue";
    case NO_DEVICE: return "hipErrorNoDevice";
    case NO_BINARY: return "hipErrorNoBinaryForGpu";
    case NOT_FOUND: return "hipErrorNotFound";
    }
    return "hipErrorUnknown";
}

int hipInit(unsigned flags) { SAID(flags ? INVALID : devices ? SUCCESS : NO_DEVICE); }
int hipSetDevice(int number) { SAID(number < devices ? SUCCESS : INVALID); }
int hipGetDevicePropertiesR0600(char *properties, int number) {
    memset(properties, 0, 1472);
    strcpy(properties, "AMD Double");
    strcpy(properties + 1160, architecture);
    SAID(SUCCESS);
}
int hipDeviceGetAttribute(int *value, int attribute, int device) {
    *value = attribute == 63 ? 304 : 0;
    SAID(SUCCESS);
}
int hipDriverGetVersion(int *version) { *version = 60342134; SAID(SUCCESS); }

int hipMalloc(void **pointer, size_t size) {
    if (size > 1ull << 40) SAID(OUT_OF_MEMORY);
    *pointer = aligned_alloc(64, (size + 63) / 64 * 64);
    memset(*pointer, 0xA5, size);
    live++;
    SAID(SUCCESS);
}
int hipFree(void *pointer) { free(pointer); live--; SAID(SUCCESS); }
int hipMemset(void *pointer, int value, size_t size) { memset(pointer, value, size); SAID(SUCCESS); }
int hipMemcpyHtoD(void *to, const void *from, size_t size) { memcpy(to, from, size); SAID(SUCCESS); }
int hipMemcpyDtoH(void *to, const void *from, size_t size) { memcpy(to, from, size); SAID(SUCCESS); }

int hipModuleLoadData(void **module, const void *image) {
    if (memcmp(image, "\x7f" "ELF", 4)) SAID(NO_BINARY);
    if (load_) load_(image);
    *module = &module_;
    live++;
    SAID(SUCCESS);
}
int hipModuleUnload(void *module) { live--; SAID(module == &module_ ? SUCCESS : INVALID); }
int hipModuleGetFunction(void **function, void *module, const char *name) {
    *function = module == &module_ ? function_(name) : 0;
    SAID(*function ? SUCCESS : NOT_FOUND);
}

int hipModuleLaunchKernel(void *function, unsigned x, unsigned y, unsigned z, unsigned bx, unsigned by, unsigned bz,
                          unsigned shared, void *stream, void **parameters, void **extra) {
    if (stream != &stream_ || extra || z != 1 || by != 1 || bz != 1 || shared || y > 65535) SAID(INVALID);
    node *made = calloc(1, sizeof *made);
    *made = (node){.function = function, .grid = {x, y, z}, .block = bx, .count = count_(function)};
    for (int i = 0; i < made->count; i++) memcpy(made->values + i, parameters[i], 8);
    if (capturing) {
        *capturing->last = made;
        capturing->last = &made->next;
    } else {
        launch_(function, x, y, bx, made->values);
        free(made);
    }
    SAID(SUCCESS);
}

int hipStreamCreate(void **stream) { *stream = &stream_; live++; SAID(SUCCESS); }
int hipStreamDestroy(void *stream) { live--; SAID(stream == &stream_ ? SUCCESS : INVALID); }
int hipStreamBeginCapture(void *stream, int mode) {
    if (stream != &stream_ || mode != 2 || capturing) SAID(INVALID);
    capturing = calloc(1, sizeof *capturing);
    capturing->last = &capturing->first;
    SAID(SUCCESS);
}
int hipStreamEndCapture(void *stream, graph **made) { *made = capturing; capturing = 0; SAID(*made ? SUCCESS : INVALID); }
int hipGraphInstantiate(graph **made, graph *from, void *bad, char *log, size_t size) {
    if (bad || log || size) SAID(INVALID);
    *made = malloc(sizeof **made);
    **made = *from;
    (*made)->executable = 1;
    live++;
    SAID(SUCCESS);
}
int hipGraphDestroy(graph *made) { int bad = made->executable; free(made); SAID(bad); }
int hipGraphExecDestroy(graph *made) {
    for (node *at = made->first, *next; at; at = next) next = at->next, free(at);
    free(made);
    live--;
    SAID(SUCCESS);
}
int hipGraphLaunch(graph *made, void *stream) {
    if (!made->executable || stream != &stream_) SAID(INVALID);
    for (node *at = made->first; at; at = at->next) launch_(at->function, at->grid[0], at->grid[1], at->block, at->values);
    SAID(SUCCESS);
}
