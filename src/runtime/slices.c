/* What a storage reader pulls from: slices of the active transfers, and what became of them.
 *
 * A slice that ended short is handed to its reader once more, and so is one that O_DIRECT refused. A
 * read that failed stops its transfer; the error names file, tensor and offset.
 */
#include "runtime/schedule.h"

#include <stdio.h>
#include <string.h>

/* Reads of unknown residency are judged when they have brought this much: a page cache gives a thread
 * 4 bytes a ns and more, a disk rarely one. */
#define PROBE_BYTES (UINT64_C(2) << 20)
#define PROBE_BYTES_PER_NS 1.5

static void *
memory_of(const struct onehop_transfer *transfer, const struct oh_flow_slice *slice)
{
	const struct oh_window *window = &transfer->flow.windows[slice->window];
	if (window->staged)
		return transfer->device->lane.blocks[window->block].memory +
		       (slice->at - window->base);
	const struct oh_plan *plan = &transfer->plan->plan;
	const struct oh_piece *piece = &plan->pieces[oh_plan_piece_from(plan, slice->at)];
	uint64_t address = transfer->plan->buffers[piece->buffer]->address + piece->buffer_offset +
			   (slice->at - piece->position);
	return (void *)(uintptr_t)address;
}

static void
fill_slice(struct oh_pending *pending, struct oh_slice *slice)
{
	const struct oh_flow_slice *from = &pending->slice;
	slice->file = pending->transfer->plan->files[from->file]->handle;
	slice->offset = from->offset;
	slice->row_bytes = from->row_bytes;
	slice->rows = from->rows;
	slice->row_stride = from->row_stride;
	slice->memory = memory_of(pending->transfer, from);
	slice->token = pending;
	pending->begun_ns = from->probe ? oh_now_ns() : 0;
	slice->direct = from->direct;
	slice->drop = from->drop;
}

static struct oh_pending *
find_pending(struct oh_source *source, int again)
{
	for (uint32_t i = 0; i < OH_SOURCE_DEPTH; i++)
		if (source->pending[i].used == again && source->pending[i].again == again)
			return &source->pending[i];
	return NULL;
}

int
oh_source_is_over(const struct oh_source *source)
{
	if (!source->only)
		return source->runtime->stop || source->runtime->touch != NULL;
	return source->done(source->only) ||
	       (source->deadline_ns != UINT64_MAX && oh_now_ns() >= source->deadline_ns);
}

static int
source_take(struct oh_slice_source *base, struct oh_slice *slice)
{
	struct oh_source *source = (struct oh_source *)base;
	struct onehop_runtime *runtime = source->runtime;
	struct oh_pending *pending;
	if (source->agains) {
		pending = find_pending(source, 1);
		pending->again = 0;
		source->agains--;
		fill_slice(pending, slice);
		return 1;
	}
	pending = find_pending(source, 0);
	if (!pending)
		return 0;
	pthread_mutex_lock(&runtime->lock);
	pending->transfer = oh_source_is_over(source) ? NULL
					    : oh_take_slice(runtime, source->only, &pending->slice);
	/* This thread may be long: another has to go on with what it leaves. */
	int is_left = oh_more_slices(runtime) || (runtime->in_flight && !runtime->polling);
	if (pending->transfer && is_left)
		oh_wake_one(runtime);
	pthread_mutex_unlock(&runtime->lock);
	if (!pending->transfer)
		return 0;
	pending->used = 1;
	fill_slice(pending, slice);
	return 1;
}

/* The name of what lies at a position, for an error. */
static const char *
name_at(const struct onehop_transfer *transfer, uint64_t position, char text[OH_SHOWN + 16])
{
	const struct oh_plan *plan = &transfer->plan->plan;
	uint64_t part = oh_plan_part_from(plan, position);
	text[0] = '\0';
	if (transfer->plan->names && part < plan->part_count) {
		const char *name = transfer->plan->names[plan->parts[part].extent];
		char shown[OH_SHOWN];
		if (name)
			snprintf(text, OH_SHOWN + 16, "tensor %s: ",
				 oh_show(shown, name, strlen(name)));
	}
	return text;
}

static void
read_error(const struct onehop_transfer *transfer, const struct oh_flow_slice *slice,
	   const struct oh_slice_result *result, struct onehop_error *error)
{
	const struct onehop_file *file = transfer->plan->files[slice->file];
	char name[OH_SHOWN + 16];
	name_at(transfer, oh_min(slice->at + result->bytes, slice->end - 1), name);
	if (result->status == ONEHOP_NO_ROUTE) {
		oh_fail(error, ONEHOP_NO_ROUTE,
			"%s: %sthe route direct is forced, but reading %llu bytes at offset %llu by "
			"O_DIRECT is refused",
			file->path, name, (unsigned long long)slice->bytes,
			(unsigned long long)slice->offset);
		oh_remedy(error, "set route to auto");
		return;
	}
	if (result->status) {
		oh_fail_errno(error, result->os_errno, "%s: %sreading %llu bytes at offset %llu failed",
			      file->path, name, (unsigned long long)slice->bytes,
			      (unsigned long long)slice->offset);
		error->status = result->status;
		return;
	}
	oh_fail(error, ONEHOP_FILE_CHANGED,
		"%s: %struncated while it was read: it ends at or before offset %llu, and had %llu "
		"bytes when it was opened",
		file->path, name, (unsigned long long)slice->offset,
		(unsigned long long)file->facts.bytes);
	oh_remedy(error, "load it again when nothing writes to it");
}

/* With the lock held: the counters of a read that ended. */
static void
count_read(struct onehop_transfer *transfer, const struct oh_slice_result *result)
{
	uint64_t now = oh_since_start(transfer);
	if (!transfer->completion.first_read_ns)
		transfer->completion.first_read_ns = now;
	transfer->completion.last_read_ns = now;
	transfer->completion.read_bytes += result->read_bytes;
}

/* Residency was not known: what reads at a disk's speed was not resident, and the rest of it goes
 * past the page cache. */
static void
judge(struct onehop_transfer *transfer, uint64_t bytes, uint64_t ns)
{
	transfer->probe_bytes += bytes;
	transfer->probe_ns += ns;
	if (transfer->probe_bytes >= PROBE_BYTES &&
	    (double)transfer->probe_bytes < (double)transfer->probe_ns * PROBE_BYTES_PER_NS)
		transfer->flow.go_direct = 1;
}

/* A cancelled transfer waits for reads that are under way. If one takes long, it is the storage that
 * hangs, and the user should know where. */
static void
name_slow_read(struct onehop_transfer *transfer, const struct oh_flow_slice *slice)
{
	uint64_t waited = transfer->stopped_ns ? oh_now_ns() - transfer->stopped_ns : 0;
	const char *path = transfer->plan->files[slice->file]->path;
	if (waited < transfer->runtime->patience_ns || transfer->error.status != ONEHOP_CANCELLED)
		return;
	oh_fail(&transfer->error, ONEHOP_CANCELLED,
		"cancelled; %s: a read at offset %llu took %.1f s to return after that", path,
		(unsigned long long)slice->offset, (double)waited / 1e9);
	oh_remedy(&transfer->error, "look at the storage of that file");
}

static int
may_reroute(const struct onehop_transfer *transfer)
{
	return transfer->runtime->options.route == ONEHOP_AUTO;
}

/* O_DIRECT was refused when it came to reading: the slice is taken again, through the page cache. */
static void
reroute(struct oh_source *source, struct oh_pending *pending)
{
	struct onehop_transfer *transfer = pending->transfer;
	pthread_mutex_lock(&source->runtime->lock);
	oh_flow_direct_refused(&transfer->flow, &pending->slice);
	transfer->completion.reasons |= ONEHOP_REASON_NO_DIRECT;
	pthread_mutex_unlock(&source->runtime->lock);
	pending->again = 1;
	source->agains++;
}

static void
source_give(struct oh_slice_source *base, const struct oh_slice *slice,
	    const struct oh_slice_result *result)
{
	struct oh_source *source = (struct oh_source *)base;
	struct oh_pending *pending = slice->token;
	struct onehop_transfer *transfer = pending->transfer;
	struct onehop_runtime *runtime = source->runtime;
	struct onehop_error error;
	/* What came before a failure does not matter: the transfer ends. */
	int ok = result->status == ONEHOP_OK && result->bytes > 0;
	if (result->status == ONEHOP_NO_ROUTE && may_reroute(transfer)) {
		reroute(source, pending);
		return;
	}
	if (!ok)
		read_error(transfer, &pending->slice, result, &error);
	uint64_t probe_ns = pending->begun_ns ? oh_now_ns() - pending->begun_ns : 0;
	pthread_mutex_lock(&runtime->lock);
	count_read(transfer, result);
	if (pending->begun_ns)
		judge(transfer, result->bytes, probe_ns);
	enum oh_flow_act act = oh_flow_read_ended(&transfer->flow, &pending->slice, result->bytes, ok);
	if (act == OH_FLOW_AGAIN) {
		pthread_mutex_unlock(&runtime->lock);
		pending->again = 1;
		source->agains++;
		return;
	}
	pending->used = 0;
	transfer->reading--;
	name_slow_read(transfer, &pending->slice);
	if (act == OH_FLOW_FREE)
		oh_release(transfer, &transfer->flow.windows[pending->slice.window]);
	if (!ok)
		oh_transfer_stop(transfer, &error);
	if (act == OH_FLOW_COPY)
		oh_start_copies(transfer, pending->slice.window);
	else if (act == OH_FLOW_FREE && transfer->waiters)
		pthread_cond_broadcast(&transfer->cond);
	oh_transfer_check_end(transfer);
	pthread_mutex_unlock(&runtime->lock);
}

void
oh_source_init(struct oh_source *source, struct onehop_runtime *runtime)
{
	memset(source, 0, sizeof *source);
	source->base.take = source_take;
	source->base.give = source_give;
	source->runtime = runtime;
}
