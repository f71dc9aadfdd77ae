/* Plans: the caller's extents, with files and buffers numbered, handed to the engine.
 *
 * The plan remembers files, buffers and names in its own arrays; it opens and owns none of them.
 */
#include "runtime/internal.h"

#include "base/arith.h"
#include "base/give.h"

#include <stdlib.h>
#include <string.h>

/* Numbers pointers in order of first use. Lists mostly name the same one again and again. */
struct numbering {
	const void **items;
	uint32_t count;
	uint32_t room;
	uint32_t *slots; /* a hash table of index + 1 */
	uint32_t slot_count; /* a power of two, at least twice room */
};

static uint32_t
slot_of(const struct numbering *n, const void *item)
{
	uint64_t hash = (uint64_t)(uintptr_t)item * UINT64_C(0x9E3779B97F4A7C15);
	uint32_t slot = (uint32_t)(hash >> 32) & (n->slot_count - 1);
	while (n->slots[slot] && n->items[n->slots[slot] - 1] != item)
		slot = (slot + 1) & (n->slot_count - 1);
	return slot;
}

static int
grow(struct numbering *n)
{
	uint32_t room = n->room ? n->room * 2 : 16;
	const void **items = realloc(n->items, room * sizeof *items);
	if (items)
		n->items = items;
	uint32_t *slots = calloc((size_t)room * 2, sizeof *slots);
	if (!items || !slots) {
		free(slots);
		return 1;
	}
	free(n->slots);
	n->slots = slots;
	n->slot_count = room * 2;
	n->room = room;
	for (uint32_t i = 0; i < n->count; i++)
		n->slots[slot_of(n, n->items[i])] = i + 1;
	return 0;
}

/* 1 if out of memory. */
static int
number(struct numbering *n, const void *item, uint32_t *index)
{
	if (n->count && n->items[n->count - 1] == item) {
		*index = n->count - 1;
		return 0;
	}
	if (n->count == n->room && grow(n))
		return 1;
	uint32_t slot = slot_of(n, item);
	if (!n->slots[slot]) {
		n->items[n->count] = item;
		n->slots[slot] = ++n->count;
	}
	*index = n->slots[slot] - 1;
	return 0;
}

static onehop_status
translate(const struct onehop_extent *extents, uint64_t count, struct oh_extent *out,
	  struct numbering *files, struct numbering *buffers, struct onehop_error *error)
{
	for (uint64_t i = 0; i < count; i++) {
		const struct onehop_extent *from = &extents[i];
		if (!from->file || !from->buffer)
			return oh_fail(error, ONEHOP_INVALID_ARGUMENT,
				       "extent %llu has no file or no buffer", (unsigned long long)i);
		out[i] = (struct oh_extent){
			.offset = from->offset,
			.row_bytes = from->row_bytes,
			.rows = from->rows,
			.row_stride = from->row_stride,
			.buffer_offset = from->buffer_offset,
			.name = from->name,
		};
		if (number(files, from->file, &out[i].file) ||
		    number(buffers, from->buffer, &out[i].buffer))
			return oh_fail_no_memory(error, count * sizeof *out, "the plan");
	}
	return ONEHOP_OK;
}

static onehop_status
find_device(struct onehop_plan *plan, struct onehop_error *error)
{
	for (uint32_t i = 0; i < plan->buffer_count; i++) {
		if (plan->buffers[i]->runtime != plan->runtime)
			return oh_fail(error, ONEHOP_INVALID_ARGUMENT,
				       "a buffer belongs to another runtime");
		if (plan->buffers[i]->device != plan->buffers[0]->device)
			return oh_fail(error, ONEHOP_INVALID_ARGUMENT,
				       "buffers on %s and %s: a plan goes to one device",
				       plan->buffers[0]->device->name,
				       plan->buffers[i]->device->name);
	}
	if (plan->buffer_count)
		plan->device = plan->buffers[0]->device;
	return ONEHOP_OK;
}

/* Sizes that overflow are refused later. */
static uint64_t
total_bytes(const struct onehop_plan *plan, const struct oh_extent *extents)
{
	uint64_t total = 0, bytes;
	for (uint64_t i = 0; i < plan->extent_count; i++)
		if (oh_mul(extents[i].row_bytes, extents[i].rows, &bytes) || oh_add(total, bytes, &total))
			return UINT64_MAX;
	return total;
}

/* As it was when the runtime was made, where that leaves no doubt, else as it is now. */
static uint64_t
usable_memory(const struct onehop_runtime *runtime, uint64_t bytes)
{
	struct oh_machine machine;
	if (bytes <= runtime->machine.memory_bytes / 4)
		return runtime->machine.memory_bytes;
	oh_machine_read(&machine);
	return machine.memory_bytes;
}

static onehop_status
build(struct onehop_plan *plan, const struct oh_extent *extents, struct onehop_error *error)
{
	struct oh_file_facts *files = calloc(plan->file_count + 1u, sizeof *files);
	struct oh_buffer_facts *buffers = calloc(plan->buffer_count + 1u, sizeof *buffers);
	onehop_status status = files && buffers ? ONEHOP_OK
						: oh_fail_no_memory(error, sizeof *files, "the plan");
	uint64_t bytes = total_bytes(plan, extents), memory = usable_memory(plan->runtime, bytes);
	int few_cores = oh_few_cores(plan);
	if (!status)
		status = oh_file_facts_read(plan, bytes, memory, few_cores, files, error);
	for (uint32_t i = 0; !status && i < plan->buffer_count; i++) {
		buffers[i].address = plan->buffers[i]->address;
		buffers[i].bytes = plan->buffers[i]->bytes;
	}
	if (!status) {
		struct oh_plan_facts facts = {
			.files = files,
			.file_count = plan->file_count,
			.buffers = buffers,
			.buffer_count = plan->buffer_count,
			.memory = plan->device->facts,
			.forced_route = plan->runtime->options.route,
			.cache = plan->runtime->options.cache,
			.memory_bytes = memory,
			.few_cores = few_cores,
		};
		status = oh_plan_build(extents, plan->extent_count, &facts, &plan->plan, error);
	}
	for (uint32_t i = 0; files && i < plan->file_count; i++)
		free((void *)(uintptr_t)files[i].residence);
	free(files);
	free(buffers);
	return status;
}

static onehop_status
keep_names(struct onehop_plan *plan, const struct onehop_extent *extents,
	   struct onehop_error *error)
{
	uint64_t named = 0;
	while (named < plan->extent_count && !extents[named].name)
		named++;
	if (named == plan->extent_count)
		return ONEHOP_OK;
	plan->names = calloc(plan->extent_count, sizeof *plan->names);
	if (!plan->names)
		return oh_fail_no_memory(error, plan->extent_count * sizeof *plan->names, "the plan");
	for (uint64_t i = named; i < plan->extent_count; i++)
		plan->names[i] = extents[i].name;
	return ONEHOP_OK;
}

onehop_status
onehop_plan_create(struct onehop_runtime *runtime, const struct onehop_extent *extents,
		   uint64_t count, struct onehop_plan **out, struct onehop_error *error)
{
	struct numbering files = {0}, buffers = {0};
	if (!runtime || (!extents && count) || !out)
		return oh_fail(error, ONEHOP_INVALID_ARGUMENT, "runtime, extents or plan is NULL");
	if (oh_forked(runtime, error))
		return ONEHOP_FORKED;
	struct onehop_plan *plan = calloc(1, sizeof *plan);
	struct oh_extent *own = calloc(count + 1, sizeof *own);
	onehop_status status = plan && own ? ONEHOP_OK
					   : oh_fail_no_memory(error, count * sizeof *own, "the plan");
	if (!status)
		status = translate(extents, count, own, &files, &buffers, error);
	if (status) {
		free(files.items);
		free(buffers.items);
		free(plan);
		goto free_own;
	}
	plan->runtime = runtime;
	plan->extent_count = count;
	plan->files = (struct onehop_file **)files.items;
	plan->buffers = (struct onehop_buffer **)buffers.items;
	plan->file_count = files.count;
	plan->buffer_count = buffers.count;
	status = find_device(plan, error);
	/* A plan of nothing goes to the host, which takes nothing as well as any. */
	if (!status && !plan->device)
		status = oh_device_get(runtime, "host", &plan->device, error);
	if (!status)
		status = build(plan, own, error);
	if (!status)
		status = keep_names(plan, extents, error);
	if (status)
		onehop_plan_destroy(plan);
	else
		*out = plan;
free_own:
	free(own);
	free(files.slots);
	free(buffers.slots);
	return status;
}

void
onehop_plan_destroy(struct onehop_plan *plan)
{
	if (!plan || oh_forked(plan->runtime, NULL))
		return;
	oh_plan_free(&plan->plan);
	free(plan->files);
	free(plan->buffers);
	free(plan->names);
	free(plan);
}

onehop_status
onehop_plan_query(const struct onehop_plan *plan, struct onehop_plan_info *info)
{
	struct onehop_plan_info full = {
		.reasons = plan->plan.reasons,
		.bytes = plan->plan.bytes,
		.read_bytes = plan->plan.read_bytes,
		.segments = plan->plan.segment_count,
		.pieces = plan->plan.piece_count,
		.extents = plan->extent_count,
	};
	return oh_give(info, &full, sizeof full);
}

onehop_status
onehop_plan_segment_at(const struct onehop_plan *plan, uint64_t index, struct onehop_segment *out)
{
	if (index >= plan->plan.segment_count)
		return ONEHOP_OUT_OF_RANGE;
	const struct oh_segment *from = &plan->plan.segments[index];
	struct onehop_segment full = {
		.route = from->route,
		.reasons = from->reasons,
		.staged = from->staged,
		.path = plan->files[from->file]->path,
		.offset = from->offset,
		.row_bytes = from->row_bytes,
		.rows = from->rows,
		.row_stride = from->row_stride,
		.pieces = from->pieces,
	};
	return oh_give(out, &full, sizeof full);
}

#define REASON_NAME(name, bit, text, remedy)                                                       \
	case 1 << bit:                                                                             \
		return #name;
#define REASON_TEXT(name, bit, text, remedy)                                                       \
	case 1 << bit:                                                                             \
		return text;
#define REASON_REMEDY(name, bit, text, remedy)                                                     \
	case 1 << bit:                                                                             \
		return remedy;
#define ROUTE_NAME(name, value, text, doc)                                                         \
	case value:                                                                                \
		return text;

const char *
onehop_reason_name(uint32_t reason)
{
	switch (reason) {
		ONEHOP_REASON_LIST(REASON_NAME)
	}
	return "unknown";
}

const char *
onehop_reason_text(uint32_t reason)
{
	switch (reason) {
		ONEHOP_REASON_LIST(REASON_TEXT)
	}
	return "unknown";
}

const char *
onehop_reason_remedy(uint32_t reason)
{
	switch (reason) {
		ONEHOP_REASON_LIST(REASON_REMEDY)
	}
	return "unknown";
}

const char *
onehop_route_name(uint32_t route)
{
	switch (route) {
		ONEHOP_ROUTE_LIST(ROUTE_NAME)
	}
	return "unknown";
}
