/* Parity cases: copies and what they refuse, batches, events, and the order of streams. */
#include "parity.h"

#include <stdlib.h>
#include <string.h>

static struct CUstream_st *
own_stream(void)
{
	return stream_make(OH_CU_STREAM_NON_BLOCKING);
}

static void
copy_refusals(void)
{
	struct CUctx_st *popped;
	context_make();
	struct CUstream_st *stream = own_stream();
	oh_cu_address at = memory_make(65536), freed = memory_make(65536);
	char *source = pinned_make(65536, 1), *pageable = host_make(65536, 2);
	NEED(cu.mem_free(freed));
	say("good", cu.copy_in(at, source, 65536, stream));
	say("nothing", cu.copy_in(at, source, 0, stream));
	say("freed", cu.copy_in(freed, source, 16, stream));
	say("past_end", cu.copy_in(at + 65530, source, 16, stream));
	say("no_device_memory", cu.copy_in((uintptr_t)pageable, source, 16, stream));
	say("null_source", cu.copy_in(at, NULL, 16, stream));
	say("past_pinned", cu.copy_in(at, source + 65536 - 8, 16, stream));
	say("out_freed", cu.copy_out(source, freed, 16, stream));
	say("out_past_end", cu.copy_out(source, at + 65530, 16, stream));
	say("fill_past_end", cu.fill(at + 65530, 1, 16, stream));
	say("fill_nothing", cu.fill(at, 1, 0, stream));
	say("sync", cu.stream_sync(stream));
	NEED(cu.ctx_pop(&popped));
	say("no_context", cu.copy_in(at, source, 16, stream));
}

/* From source to the device and back; both ways are compared. */
static void
round_trip(const char *step, size_t bytes, char *source, char *back)
{
	struct CUstream_st *stream = own_stream();
	oh_cu_address at = memory_make(bytes + 64);
	for (size_t i = 0; i < bytes; i++)
		source[i] = (char)(i * 7 + i / 251);
	say(step, cu.copy_in(at + 3, source, bytes, stream));
	NEED(cu.copy_out(back, at + 3, bytes, stream));
	NEED(cu.stream_sync(stream));
	saw("bytes", "%s", memcmp(source, back, bytes) == 0 ? "right" : "wrong");
}

static void
copy_bytes(void)
{
	context_make();
	round_trip("pinned", 1000001, pinned_make(1000001, 0), pinned_make(1000001, 0));
	round_trip("pageable", 1000001, host_make(1000001, 0), host_make(1000001, 0));
	round_trip("pageable_small", 777, host_make(777, 0), host_make(777, 0));
}

static void
fill_bytes(void)
{
	context_make();
	struct CUstream_st *stream = own_stream();
	oh_cu_address at = memory_make(100003);
	char *got = pinned_make(100003, 0);
	say("fill", cu.fill(at, 0x5A, 100003, stream));
	say("fill_some", cu.fill(at + 11, 0x11, 1001, stream));
	NEED(cu.copy_out(got, at, 100003, stream));
	NEED(cu.stream_sync(stream));
	saw("bytes", "%s",
	    all_are(got, 11, 0x5A) && all_are(got + 11, 1001, 0x11) &&
			    all_are(got + 1012, 98991, 0x5A)
		    ? "right"
		    : "wrong");
}

/* Changes the source after the copy was given and before the stream may run it. */
static void
source_read_late(const char *step, char *source)
{
	struct gate gate = GATE;
	struct CUstream_st *stream = own_stream();
	oh_cu_address at = memory_make(32768);
	char *got = host_make(32768, 0);
	memset(source, 1, 32768);
	NEED(extra.host_func(stream, gate_pass, &gate));
	say(step, cu.copy_in(at, source, 32768, stream));
	memset(source, 2, 32768);
	gate_open(&gate);
	NEED(cu.stream_sync(stream));
	NEED(cu.copy_out(got, at, 32768, stream));
	NEED(cu.stream_sync(stream));
	saw("arrived", "%s",
	    all_are(got, 32768, 2) ? "the later bytes"
	    : all_are(got, 32768, 1) ? "the earlier bytes"
				     : "a mixture");
}

static void
pinned_source(void)
{
	context_make();
	source_read_late("copy", pinned_make(32768, 0));
}

static void
pinned_source_of_another_context(void)
{
	context_make();
	char *source = pinned_make(32768, 0);
	context_make();
	source_read_late("copy", source);
}

static void
pageable_source(void)
{
	context_make();
	struct CUstream_st *stream = own_stream();
	const size_t bytes = 4 << 20;
	oh_cu_address at = memory_make(bytes);
	char *source = host_make(bytes, 1), *got = host_make(bytes, 0);
	for (size_t some = 4096; some <= bytes; some *= 1024) {
		memset(source, 1, some);
		say("copy", cu.copy_in(at, source, some, stream));
		memset(source, 2, some);
		NEED(cu.copy_out(got, at, some, stream));
		NEED(cu.stream_sync(stream));
		saw("arrived", "%s",
		    all_are(got, some, 1) ? "the bytes at the call" : "later bytes");
	}
}

struct batch {
	oh_cu_address to[4], from[4];
	size_t bytes[4];
	size_t count, attributes, first;
	struct oh_cu_copy_attributes attribute;
};

static oh_cu_result
give(int version, struct batch b, struct CUstream_st *stream)
{
	struct CUmemcpyAttributes_st *attributes = (struct CUmemcpyAttributes_st *)&b.attribute;
	size_t failed = 77;
	if (version == 13)
		return cu.batch_13(b.to, b.from, b.bytes, b.count, attributes, &b.first,
				   b.attributes, stream);
	return cu.batch_12(b.to, b.from, b.bytes, b.count, attributes, &b.first, b.attributes,
			   &failed, stream);
}

static void
batches(int version)
{
	context_make();
	struct CUstream_st *stream = own_stream(), *blocking = stream_make(0);
	oh_cu_address at = memory_make(65536), freed = memory_make(65536);
	char *source = pinned_make(65536, 6), *got = pinned_make(65536, 0);
	NEED(cu.mem_free(freed));
	const struct batch good = {.to = {at, at + 1000, at + 3001},
				   .from = {(uintptr_t)source, (uintptr_t)source + 1,
					    (uintptr_t)source + 40000},
				   .bytes = {1000, 2001, 62535 - 40000},
				   .count = 3,
				   .attributes = 1,
				   .attribute = {.source_order = OH_CU_SOURCE_ORDER_STREAM}};
	struct batch b = good;
	NEED(cu.fill(at, 9, 65536, stream));
	say("good", give(version, b, stream));
	NEED(cu.copy_out(got, at, 65536, stream));
	say("sync", cu.stream_sync(stream));
	saw("bytes", "%s",
	    all_are(got, 25536, 6) && all_are(got + 25536, 40000, 9) ? "right" : "wrong");
	say("blocking_stream", give(version, b, blocking));
	say("null_stream", give(version, b, NULL));
	say("legacy_stream", give(version, b, (struct CUstream_st *)1));
	b.attributes = 0;
	say("no_attributes", give(version, b, stream));
	b = good;
	b.attribute.source_order = 0;
	say("no_order", give(version, b, stream));
	b = good;
	b.to[1] = freed;
	say("freed", give(version, b, stream));
	b = good;
	b.to[2] = at + 65530;
	say("past_end", give(version, b, stream));
	say("sync_at_end", cu.stream_sync(stream));
}

static void
batch_13(void)
{
	if (cu.batch_13)
		batches(13);
	else
		saw("function", "not there");
}

static void
batch_12(void)
{
	if (cu.batch_12)
		batches(12);
	else
		saw("function", "not there");
}

static void
batch_source(void)
{
	struct gate gate = GATE;
	context_make();
	struct CUstream_st *stream = own_stream();
	oh_cu_address at = memory_make(32768);
	char *source = pinned_make(32768, 1), *got = host_make(32768, 0);
	struct batch b = {.to = {at, at + 16384},
			  .from = {(uintptr_t)source, (uintptr_t)source + 16384},
			  .bytes = {16384, 16384},
			  .count = 2,
			  .attributes = 1,
			  .attribute = {.source_order = OH_CU_SOURCE_ORDER_STREAM}};
	NEED(extra.host_func(stream, gate_pass, &gate));
	say("give", give(13, b, stream));
	memset(source, 2, 32768);
	gate_open(&gate);
	NEED(cu.stream_sync(stream));
	NEED(cu.copy_out(got, at, 32768, stream));
	NEED(cu.stream_sync(stream));
	saw("arrived", "%s", all_are(got, 32768, 2) ? "the later bytes" : "earlier bytes");
}

static void
events(void)
{
	struct gate gate = GATE;
	context_make();
	struct CUstream_st *stream = own_stream();
	struct CUevent_st *event = event_make();
	say("never_recorded", cu.event_query(event));
	NEED(extra.host_func(stream, gate_pass, &gate));
	say("record", cu.event_record(event, stream));
	say("pending", cu.event_query(event));
	say("stream_pending", extra.stream_query(stream));
	gate_open(&gate);
	say("wait", extra.event_sync(event));
	say("done", cu.event_query(event));
	say("null", cu.event_query(NULL));
	say("destroy", cu.event_destroy(event));
}

/* A stream waits for what an event held when it was told to, not for what it holds later; the event
 * may be destroyed meanwhile. */
static void
waiting(void)
{
	struct gate gate = GATE, later = GATE;
	context_make();
	struct CUstream_st *first = own_stream(), *second = own_stream(), *third = own_stream();
	struct CUevent_st *event = event_make();
	NEED(extra.host_func(first, gate_pass, &gate));
	NEED(cu.event_record(event, first));
	say("wait", cu.stream_wait(second, event, 0));
	NEED(extra.host_func(third, gate_pass, &later));
	NEED(cu.event_record(event, third));
	say("destroy", cu.event_destroy(event));
	say("held", extra.stream_query(second));
	gate_open(&gate);
	say("released", cu.stream_sync(second));
	gate_open(&later);
	say("third", cu.stream_sync(third));
}

static void
wait_orders_copies(void)
{
	struct gate gate = GATE;
	context_make();
	struct CUstream_st *first = own_stream(), *second = own_stream();
	struct CUevent_st *event = event_make();
	oh_cu_address at = memory_make(4096);
	char *source = pinned_make(4096, 4), *got = pinned_make(4096, 0);
	NEED(cu.fill(at, 3, 4096, first));
	NEED(cu.stream_sync(first));
	NEED(extra.host_func(first, gate_pass, &gate));
	NEED(cu.copy_in(at, source, 4096, first));
	NEED(cu.event_record(event, first));
	NEED(cu.stream_wait(second, event, 0));
	NEED(cu.copy_out(got, at, 4096, second));
	say("held", extra.stream_query(second));
	gate_open(&gate);
	say("sync", cu.stream_sync(second));
	saw("bytes", "%s", all_are(got, 4096, 4) ? "the copied" : "older");
}

static void
legacy_stream(void)
{
	struct gate gate = GATE;
	context_make();
	struct CUstream_st *own = own_stream(), *blocking = stream_make(0);
	struct CUevent_st *first = event_make(), *second = event_make();
	oh_cu_address at = memory_make(4096), other = memory_make(4096);
	NEED(extra.host_func(NULL, gate_pass, &gate));
	NEED(cu.fill(at, 1, 4096, blocking));
	NEED(cu.event_record(first, blocking));
	NEED(cu.fill(other, 1, 4096, own));
	NEED(cu.event_record(second, own));
	say("non_blocking", extra.event_sync(second));
	say("blocking", cu.event_query(first));
	say("record", cu.event_record(second, NULL));
	say("wait", cu.stream_wait(own, second, 0));
	say("waits", extra.stream_query(own));
	gate_open(&gate);
	say("blocking_after", extra.event_sync(first));
	say("own_after", cu.stream_sync(own));
}

static void
another_context(void)
{
	struct CUctx_st *first = context_make(), *got = NULL;
	struct CUstream_st *stream = own_stream();
	struct CUevent_st *event = event_make();
	struct CUctx_st *second = context_make();
	struct CUstream_st *here = own_stream();
	struct CUevent_st *other = event_make();
	say("record", cu.event_record(other, stream));
	say("wait", cu.stream_wait(stream, other, 0));
	NEED(cu.ctx_push(first));
	say("record_theirs", cu.event_record(event, stream));
	NEED(cu.ctx_pop(&got));
	say("wait_theirs", cu.stream_wait(here, event, 0));
	say("query_theirs", extra.event_sync(event));
	say("context", cu.stream_context(stream, &got));
	saw("context_is", "%s", got == first ? "its own" : got == second ? "the current" : "none");
	say("legacy", cu.stream_context(NULL, &got));
	saw("legacy_is", "%s", got == second ? "the current" : "another");
}

static void
capture(void)
{
	unsigned int status = 9;
	struct CUgraph_st *graph = NULL;
	context_make();
	struct CUstream_st *stream = stream_make(0);
	say("before", cu.stream_capture(stream, &status));
	saw("before_is", "%u", status);
	say("begin", extra.capture_begin(stream, 2));
	say("during", cu.stream_capture(stream, &status));
	saw("during_is", "%u", status);
	say("end", extra.capture_end(stream, &graph));
	say("graph", extra.graph_destroy(graph));
	say("after", cu.stream_capture(stream, &status));
	saw("after_is", "%u", status);
	say("legacy", cu.stream_capture(NULL, &status));
	saw("legacy_is", "%u", status);
}

const struct parity_case parity_order[] = {
	{"copy_refusals", copy_refusals},
	{"copy_bytes", copy_bytes},
	{"fill_bytes", fill_bytes},
	{"pinned_source", pinned_source},
	{"pinned_source_of_another_context", pinned_source_of_another_context},
	{"pageable_source", pageable_source},
	{"batch_13", batch_13},
	{"batch_12", batch_12},
	{"batch_source", batch_source},
	{"events", events},
	{"waiting", waiting},
	{"wait_orders_copies", wait_orders_copies},
	{"legacy_stream", legacy_stream},
	{"another_context", another_context},
	{"capture", capture},
	{NULL, NULL},
};
