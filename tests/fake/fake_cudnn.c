// SPDX-License-Identifier: Apache-2.0
// fake_cudnn: a stand-in for libcudnn.so.9, so that what is built on its backend API can be tested
// without a GPU. Descriptors are kept as they were filled in; engines, knobs and lists are what the
// test says; a launch is the test's to run. What the real library would take amiss ends the
// program: attributes of the wrong type, descriptors used before they are finalized or after they
// are destroyed, a handle in two threads at once, a thread without a context. It may be called from
// threads, as the real one may.
#include "tests/fake/fake_cudnn.h"

#include <cudnn_backend.h>
#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define EXPORT     __attribute__((visibility("default")))
#define MAX_VALUES 64
#define MAX_ATTRS  16
#define MAGIC      0x63756446u

struct attribute {
    int name, type;
    int64_t n;
    union {
        int64_t i[MAX_VALUES];
        void *p[MAX_VALUES];
    } is;
};

struct descriptor {
    unsigned magic;
    int type;
    bool is_final;
    int users; // others that were filled with it keep it alive, as the library does
    bool is_dropped;
    int n;
    struct attribute attributes[MAX_ATTRS];
};

// A handle, which the library's users know as an address.
struct cudnnContext {
    unsigned magic;
    bool is_in_use;
};

static struct fake_cudnn state = { .version = 91900 };
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; // of all but what a test is asked

EXPORT struct fake_cudnn *fake_cudnn_state(void);
struct fake_cudnn *fake_cudnn_state(void)
{
    return &state;
}

static void must(bool holds, const char *what)
{
    if (holds)
        return;
    fprintf(stderr, "fake_cudnn: %s\n", what);
    abort();
}

static struct cudnnContext *handle_at(void *one)
{
    struct cudnnContext *h = one;

    must(h && h->magic == MAGIC, "this is no handle");
    return h;
}

// The stand-in for the driver knows; where there is another, nobody is asked.
static bool has_context(void)
{
    void *driver = dlopen("libcuda.so.1", RTLD_LAZY | RTLD_NOLOAD);
    bool (*is_current)(void) = NULL;

    if (driver)
        *(void **)&is_current = dlsym(driver, "fake_cuda_is_current");
    return !is_current || is_current();
}

static struct descriptor *at(void *one)
{
    struct descriptor *d = one;

    must(d && d->magic == MAGIC, "this is no descriptor");
    return d;
}

// --- attributes ---

static size_t bytes_of(int type)
{
    switch (type) {
    case CUDNN_TYPE_INT64:
    case CUDNN_TYPE_VOID_PTR:
    case CUDNN_TYPE_BACKEND_DESCRIPTOR:
    case CUDNN_TYPE_HANDLE:
        return 8;
    default:
        return 4;
    }
}

static struct attribute *find(struct descriptor *d, int name)
{
    for (int i = 0; i < d->n; i++)
        if (d->attributes[i].name == name)
            return &d->attributes[i];
    return NULL;
}

static int64_t number(struct descriptor *d, int name, int64_t otherwise)
{
    struct attribute *a = find(d, name);

    return a && a->n ? a->is.i[0] : otherwise;
}

static struct descriptor *part(struct descriptor *d, int name)
{
    struct attribute *a = find(d, name);

    must(a && a->n == 1, "a descriptor is missing");
    return at(a->is.p[0]);
}

static void let_go(struct descriptor *d)
{
    if (!d->is_dropped || d->users)
        return;
    for (int i = 0; i < d->n; i++)
        for (int64_t k = 0;
             d->attributes[i].type == CUDNN_TYPE_BACKEND_DESCRIPTOR && k < d->attributes[i].n;
             k++) {
            struct descriptor *used = at(d->attributes[i].is.p[k]);

            used->users--;
            let_go(used);
        }
    d->magic = 0;
    free(d);
}

// --- the API ---

#define API(ret, name, ...)                                                                        \
    EXPORT ret name(__VA_ARGS__);                                                                  \
    ret name(__VA_ARGS__)

API(size_t, cudnnGetVersion, void)
{
    return (size_t)state.version;
}

API(const char *, cudnnGetErrorString, cudnnStatus_t s)
{
    return s == CUDNN_STATUS_NOT_SUPPORTED ? "CUDNN_STATUS_NOT_SUPPORTED" : "CUDNN_STATUS_FAKE";
}

API(void, cudnnGetLastErrorString, char *out, size_t bytes)
{
    snprintf(out, bytes, "the test wished it");
}

API(cudnnStatus_t, cudnnCreate, cudnnHandle_t *handle)
{
    if (state.create_result)
        return (cudnnStatus_t)state.create_result;
    must(has_context(), "a handle in a thread without a context");
    *handle = calloc(1, sizeof **handle);
    must(*handle != NULL, "no memory");
    (*handle)->magic = MAGIC;
    pthread_mutex_lock(&lock);
    state.handles++;
    pthread_mutex_unlock(&lock);
    return CUDNN_STATUS_SUCCESS;
}

API(cudnnStatus_t, cudnnDestroy, cudnnHandle_t handle)
{
    if (state.destroy)
        state.destroy();
    must(!handle_at(handle)->is_in_use, "a handle is destroyed in use");
    handle->magic = 0;
    free(handle);
    pthread_mutex_lock(&lock);
    state.handles--;
    pthread_mutex_unlock(&lock);
    return CUDNN_STATUS_SUCCESS;
}

API(cudnnStatus_t, cudnnSetStream, cudnnHandle_t handle, cudaStream_t stream)
{
    must(handle_at(handle) && stream, "no stream");
    return CUDNN_STATUS_SUCCESS;
}

API(cudnnStatus_t, cudnnBackendCreateDescriptor, cudnnBackendDescriptorType_t type,
    cudnnBackendDescriptor_t *out)
{
    struct descriptor *d;

    if ((int)type == 42 && state.version < 91500)
        return CUDNN_STATUS_NOT_SUPPORTED;
    d = calloc(1, sizeof *d);
    must(d != NULL, "no memory");
    d->magic = MAGIC;
    d->type = (int)type;
    pthread_mutex_lock(&lock);
    state.live++;
    pthread_mutex_unlock(&lock);
    *out = d;
    return CUDNN_STATUS_SUCCESS;
}

API(cudnnStatus_t, cudnnBackendDestroyDescriptor, cudnnBackendDescriptor_t one)
{
    struct descriptor *d = at(one);

    pthread_mutex_lock(&lock);
    must(!d->is_dropped, "destroyed twice");
    d->is_dropped = true;
    state.live--;
    let_go(d);
    pthread_mutex_unlock(&lock);
    return CUDNN_STATUS_SUCCESS;
}

API(cudnnStatus_t, cudnnBackendSetAttribute, cudnnBackendDescriptor_t one,
    cudnnBackendAttributeName_t name, cudnnBackendAttributeType_t type, int64_t n,
    const void *values)
{
    struct descriptor *d = at(one);
    struct attribute *a = &d->attributes[d->n];
    const size_t bytes = bytes_of((int)type);

    must(!d->is_final && !d->is_dropped, "filled in after it was finalized");
    must(n > 0 && n <= MAX_VALUES && d->n < MAX_ATTRS, "too many values");
    must(!find(d, (int)name), "an attribute is set twice");
    *a = (struct attribute){ .name = (int)name, .type = (int)type, .n = n };
    for (int64_t i = 0; i < n; i++) {
        int32_t narrow;

        if (bytes == 8) {
            memcpy(&a->is.i[i], (const char *)values + 8 * i, 8);
        } else {
            memcpy(&narrow, (const char *)values + 4 * i, 4);
            a->is.i[i] = narrow;
        }
        if (type == CUDNN_TYPE_BACKEND_DESCRIPTOR) {
            must(at(a->is.p[i])->is_final, "a part is not finalized");
            pthread_mutex_lock(&lock);
            at(a->is.p[i])->users++;
            pthread_mutex_unlock(&lock);
        }
    }
    d->n++;
    return CUDNN_STATUS_SUCCESS;
}

// --- what is asked of an engine ---

static struct fake_config read_config(struct descriptor *d)
{
    struct attribute *choices = find(d, CUDNN_ATTR_ENGINECFG_KNOB_CHOICES);
    struct fake_config c = { .engine = number(part(d, CUDNN_ATTR_ENGINECFG_ENGINE),
                                 CUDNN_ATTR_ENGINE_GLOBAL_INDEX, -1) };

    for (int64_t i = 0; choices && i < choices->n; i++) {
        struct descriptor *choice = at(choices->is.p[i]);

        must(c.n < FAKE_MAX_KNOBS, "more knobs than there are");
        c.knobs[c.n++] =
            (struct fake_knob){ (int)number(choice, CUDNN_ATTR_KNOB_CHOICE_KNOB_TYPE, -1),
                number(choice, CUDNN_ATTR_KNOB_CHOICE_KNOB_VALUE, -1) };
    }
    return c;
}

static void write_down(const struct fake_config *c)
{
    char text[256];
    int len = snprintf(text, sizeof text, "%lld:", (long long)c->engine);

    for (int i = 0; i < c->n; i++)
        len += snprintf(text + len, sizeof text - (size_t)len, "%s%d=%lld", i ? "," : "",
            c->knobs[i].type, (long long)c->knobs[i].value);
    len += snprintf(text + len, sizeof text - (size_t)len, " ");
    if (state.log_len + (size_t)len < sizeof state.log) {
        memcpy(state.log + state.log_len, text, (size_t)len + 1);
        state.log_len += (size_t)len;
    }
}

static cudnnStatus_t finalize_config(struct descriptor *d)
{
    struct fake_config c = read_config(d);
    bool is_good;

    pthread_mutex_lock(&lock);
    state.asked++;
    write_down(&c);
    is_good = !state.accepts || state.accepts(&c);
    state.refused += !is_good;
    pthread_mutex_unlock(&lock);
    return is_good ? CUDNN_STATUS_SUCCESS : CUDNN_STATUS_NOT_SUPPORTED;
}

static struct cudnnContext *handle_of(struct descriptor *plan)
{
    struct attribute *a = find(plan, CUDNN_ATTR_EXECUTION_PLAN_HANDLE);

    must(a != NULL, "a plan without a handle");
    return handle_at(a->is.p[0]);
}

static cudnnStatus_t finalize_plan(struct descriptor *d)
{
    struct fake_config c = read_config(part(d, CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG));
    struct cudnnContext *h = handle_of(d);
    bool is_good;

    must(has_context(), "a plan in a thread without a context");
    pthread_mutex_lock(&lock);
    must(!h->is_in_use, "a handle is in two threads");
    h->is_in_use = true;
    state.built++;
    state.building++;
    if (state.building > state.most_building)
        state.most_building = state.building;
    pthread_mutex_unlock(&lock);
    is_good = !state.builds || state.builds(&c);
    pthread_mutex_lock(&lock);
    h->is_in_use = false;
    state.building--;
    pthread_mutex_unlock(&lock);
    return is_good ? CUDNN_STATUS_SUCCESS : CUDNN_STATUS_NOT_SUPPORTED;
}

static cudnnStatus_t finalize_engine(struct descriptor *d)
{
    int64_t index = number(d, CUDNN_ATTR_ENGINE_GLOBAL_INDEX, -1);

    (void)part(d, CUDNN_ATTR_ENGINE_OPERATION_GRAPH);
    return index >= 0 && index < state.n_engines && state.engines[index].is_there
               ? CUDNN_STATUS_SUCCESS
               : CUDNN_STATUS_NOT_SUPPORTED;
}

API(cudnnStatus_t, cudnnBackendFinalize, cudnnBackendDescriptor_t one)
{
    struct descriptor *d = at(one);
    cudnnStatus_t s = CUDNN_STATUS_SUCCESS;

    must(!d->is_final, "finalized twice");
    if (d->type == CUDNN_BACKEND_ENGINE_DESCRIPTOR)
        s = finalize_engine(d);
    else if (d->type == CUDNN_BACKEND_ENGINECFG_DESCRIPTOR)
        s = finalize_config(d);
    else if (d->type == CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR)
        s = finalize_plan(d);
    d->is_final = s == CUDNN_STATUS_SUCCESS;
    return s;
}

// --- answers ---

// Fills a descriptor that the caller made, as the library fills results.
static void fill(struct descriptor *d, int name, int type, int64_t value)
{
    struct attribute *a = &d->attributes[d->n++];

    *a = (struct attribute){ .name = name, .type = type, .n = 1 };
    a->is.i[0] = value;
    d->is_final = true;
}

static void fill_engine(struct descriptor *d, int64_t index)
{
    must(d->type == CUDNN_BACKEND_ENGINE_DESCRIPTOR, "an engine was to be filled in");
    fill(d, CUDNN_ATTR_ENGINE_GLOBAL_INDEX, CUDNN_TYPE_INT64, index);
}

static void fill_choice(struct descriptor *d, const struct fake_knob *k)
{
    must(d->type == CUDNN_BACKEND_KNOB_CHOICE_DESCRIPTOR, "a choice was to be filled in");
    fill(d, CUDNN_ATTR_KNOB_CHOICE_KNOB_TYPE, CUDNN_TYPE_KNOB_TYPE, k->type);
    fill(d, CUDNN_ATTR_KNOB_CHOICE_KNOB_VALUE, CUDNN_TYPE_INT64, k->value);
}

// A configuration of a list is known by its place there.
static void fill_config(struct descriptor *d, int mode, int i)
{
    must(d->type == CUDNN_BACKEND_ENGINECFG_DESCRIPTOR, "a configuration was to be filled in");
    fill(d, -1, CUDNN_TYPE_INT64, 100 * mode + i);
}

static const struct fake_config *listed(struct descriptor *d)
{
    int64_t place = number(d, -1, -1);

    must(place >= 0, "this configuration is of no list");
    return &state.lists[place / 100].configs[place % 100];
}

static int64_t give_list(struct descriptor *d, int64_t most, void **out)
{
    int mode = (int)number(d, CUDNN_ATTR_ENGINEHEUR_MODE, 0);
    int64_t n = 0;

    if (most == 0)
        return state.lists[mode].promised > state.lists[mode].n ? state.lists[mode].promised
                                                                : state.lists[mode].n;
    for (; n < state.lists[mode].n && n < most; n++)
        fill_config(at(out[n]), mode, (int)n);
    return n;
}

static int64_t give_knobs(struct descriptor *d, int64_t most, void **out)
{
    const struct fake_engine *e = &state.engines[number(d, CUDNN_ATTR_ENGINE_GLOBAL_INDEX, 0)];
    int64_t n = 0;

    for (; n < e->n_knobs && n < most; n++) {
        struct descriptor *info = at(out[n]);

        fill(info, CUDNN_ATTR_KNOB_INFO_TYPE, CUDNN_TYPE_KNOB_TYPE, e->knobs[n].type);
        fill(info, CUDNN_ATTR_KNOB_INFO_MINIMUM_VALUE, CUDNN_TYPE_INT64, e->knobs[n].min);
        fill(info, CUDNN_ATTR_KNOB_INFO_MAXIMUM_VALUE, CUDNN_TYPE_INT64, e->knobs[n].max);
        fill(info, CUDNN_ATTR_KNOB_INFO_STRIDE, CUDNN_TYPE_INT64, e->knobs[n].stride);
    }
    return n;
}

static int64_t give_notes(struct descriptor *d, int64_t most, void *out)
{
    const struct fake_engine *e = &state.engines[number(d, CUDNN_ATTR_ENGINE_GLOBAL_INDEX, 0)];
    int64_t n = 0;

    for (; n < e->n_notes && n < most; n++)
        memcpy((char *)out + 4 * n, &e->notes[n], 4);
    return n;
}

static int64_t give_choices(struct descriptor *d, int64_t most, void **out)
{
    const struct fake_config *c = listed(d);
    int64_t n = 0;

    for (; n < c->n && n < most; n++)
        fill_choice(at(out[n]), &c->knobs[n]);
    return n;
}

static uint64_t config_workspace(struct descriptor *config)
{
    struct fake_config c = read_config(config);

    return state.workspace ? state.workspace(&c) : 0;
}

static int64_t give_number(int64_t value, void *out)
{
    memcpy(out, &value, sizeof value);
    return 1;
}

static int64_t give_stored(struct descriptor *d, int name, void *out)
{
    struct attribute *a = find(d, name);
    int32_t narrow;

    must(a && a->n == 1, "nobody knows this attribute");
    if (bytes_of(a->type) == 8)
        return give_number(a->is.i[0], out);
    narrow = (int32_t)a->is.i[0];
    memcpy(out, &narrow, sizeof narrow);
    return 1;
}

API(cudnnStatus_t, cudnnBackendGetAttribute, cudnnBackendDescriptor_t const one,
    cudnnBackendAttributeName_t name, cudnnBackendAttributeType_t type, int64_t most, int64_t *n,
    void *out)
{
    struct descriptor *d = at(one);

    (void)type;
    must(d->is_final, "asked before it was finalized");
    switch ((int)name) {
    case CUDNN_ATTR_OPERATIONGRAPH_ENGINE_GLOBAL_COUNT:
        *n = give_number(state.n_engines, out);
        break;
    case CUDNN_ATTR_ENGINEHEUR_RESULTS:
        *n = give_list(d, most, out);
        break;
    case CUDNN_ATTR_ENGINE_KNOB_INFO:
        *n = give_knobs(d, most, out);
        break;
    case CUDNN_ATTR_ENGINE_NUMERICAL_NOTE:
        *n = give_notes(d, most, out);
        break;
    case CUDNN_ATTR_ENGINE_BEHAVIOR_NOTE:
        *n = 0;
        break;
    case CUDNN_ATTR_ENGINECFG_ENGINE:
        fill_engine(at(*(void **)out), listed(d)->engine);
        *n = 1;
        break;
    case CUDNN_ATTR_ENGINECFG_KNOB_CHOICES:
        *n = give_choices(d, most, out);
        break;
    case CUDNN_ATTR_ENGINECFG_WORKSPACE_SIZE:
        *n = give_number((int64_t)config_workspace(d), out);
        break;
    case CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE:
        *n = give_number(
            (int64_t)(config_workspace(part(d, CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG)) +
                      state.plan_extra_bytes),
            out);
        break;
    default:
        *n = give_stored(d, (int)name, out);
    }
    return CUDNN_STATUS_SUCCESS;
}

// --- launches ---

static void *pointer(struct descriptor *pack, int64_t uid)
{
    struct attribute *uids = find(pack, CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS);
    struct attribute *pointers = find(pack, CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS);

    for (int64_t i = 0; i < uids->n; i++)
        if (uids->is.i[i] == uid)
            return pointers->is.p[i];
    return NULL;
}

API(cudnnStatus_t, cudnnBackendExecute, cudnnHandle_t handle, cudnnBackendDescriptor_t plan,
    cudnnBackendDescriptor_t pack)
{
    struct descriptor *p = at(plan), *v = at(pack);
    struct attribute *workspace = find(v, CUDNN_ATTR_VARIANT_PACK_WORKSPACE);
    struct fake_launch l = {
        .config = read_config(part(p, CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG)),
        .a = pointer(v, 1),
        .b = pointer(v, 2),
        .out = pointer(v, 3),
        .first = pointer(v, 4),
        .token = pointer(v, 5),
        .slot = pointer(v, 6),
        .workspace = workspace ? workspace->is.p[0] : NULL,
    };

    must(!handle_at(handle)->is_in_use && p->is_final && v->is_final, "launched too early");
    if (state.is_strict && handle_of(p) != handle)
        return CUDNN_STATUS_BAD_PARAM;
    if (state.execute_result)
        return (cudnnStatus_t)state.execute_result;
    if (state.run)
        state.run(&l);
    return CUDNN_STATUS_SUCCESS;
}
