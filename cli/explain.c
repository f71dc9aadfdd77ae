/* onehop explain: the plan of a load, without the load.
 *
 * A plan needs memory to lay bytes into, so the arena is allocated on the device and given back;
 * nothing is read but the headers. Segments are summed up by route, staging, file and reasons.
 */
#include "cli.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

const struct usage explain_usage = {
	.name = "explain",
	.operands = "PATH",
	.summary = "show how a load would travel, and why",
	.about = "Makes the plan of a load and prints its segments, summed up by route and file,\n"
		 "with the reasons why a better route was not taken. Reads headers only; the\n"
		 "memory for the tensors is allocated on the device and given back.\n",
	.words_min = 1,
	.words_max = 1,
	.option_count = 8,
	.options = {OPT_DEVICE, OPT_TENSORS, OPT_TP, OPT_TP_PLAN, OPT_TP_UNEVEN, OPT_SEGMENTS,
		    OPT_JSON, OPT_OPTION},
};

struct group {
	const char *path;
	uint32_t route, staged, reasons;
	uint64_t segments, read_bytes, pieces;
};

struct groups {
	struct group *all;
	size_t count, room;
};

static struct onehop_segment
segment_at(const struct job *job, uint64_t index)
{
	struct onehop_segment segment = {.size = sizeof segment};
	onehop_status status = onehop_plan_segment_at(job->plan, index, &segment);
	assert(status == ONEHOP_OK);
	(void)status;
	return segment;
}

static int
belongs(const struct group *group, const struct onehop_segment *segment)
{
	return group->route == segment->route && group->staged == segment->staged &&
	       group->reasons == segment->reasons && strcmp(group->path, segment->path) == 0;
}

/* The group of the segment, or NULL for no memory. Segments come file after file, so the newest
 * groups are looked at first. */
static struct group *
group_of(struct groups *groups, const struct onehop_segment *segment)
{
	for (size_t i = groups->count; i-- > 0;)
		if (belongs(&groups->all[i], segment))
			return &groups->all[i];
	if (groups->count == groups->room) {
		size_t room = groups->room ? groups->room * 2 : 16;
		struct group *grown = realloc(groups->all, room * sizeof *grown);
		if (!grown)
			return NULL;
		groups->all = grown;
		groups->room = room;
	}
	struct group *group = &groups->all[groups->count++];
	*group = (struct group){.path = segment->path,
				.route = segment->route,
				.staged = segment->staged,
				.reasons = segment->reasons};
	return group;
}

static onehop_status
sum_up(const struct job *job, struct groups *groups, struct onehop_error *error)
{
	for (uint64_t i = 0; i < job->planned.segments; i++) {
		struct onehop_segment segment = segment_at(job, i);
		struct group *group = group_of(groups, &segment);
		if (!group)
			return fail(error, ONEHOP_NO_MEMORY, 0, "no memory for the sums");
		group->segments++;
		group->read_bytes += segment.rows * segment.row_bytes;
		group->pieces += segment.pieces;
	}
	return ONEHOP_OK;
}

static const char *
way(uint32_t staged)
{
	return staged ? "through the ring" : "straight";
}

static void
print_segments(struct out *out, const struct job *job)
{
	out_text(out, "\nroute     way               offset          row bytes   rows  row stride  "
		      "pieces  file\n");
	for (uint64_t i = 0; i < job->planned.segments; i++) {
		struct onehop_segment segment = segment_at(job, i);
		out_format(out, "%-8s  %-16s  %-14llu  %-10llu  %-4llu  %-10llu  %-6llu  ",
			   onehop_route_name(segment.route), way(segment.staged),
			   (unsigned long long)segment.offset,
			   (unsigned long long)segment.row_bytes, (unsigned long long)segment.rows,
			   (unsigned long long)(segment.rows > 1 ? segment.row_stride : 0),
			   (unsigned long long)segment.pieces);
		out_name(out, segment.path, strlen(segment.path));
		out_text(out, "\n");
	}
}

static void
print_reason_names(struct out *out, uint32_t reasons)
{
	const char *between = "; ";
	for (uint32_t bit = 1; bit; bit <<= 1) {
		if (!(reasons & bit))
			continue;
		out_format(out, "%s%s", between, onehop_reason_name(bit));
		between = ", ";
	}
}

static void
print_table(struct out *out, const struct request *request, const struct job *job,
	    const struct groups *groups)
{
	char a[SIZE_TEXT], b[SIZE_TEXT], c[SIZE_TEXT];
	label(out, "model");
	out_name(out, request->words[0], strlen(request->words[0]));
	out_format(out, "\n%-16s%s\n", "device", job->device);
	out_format(out, "%-16s%s in %s bytes (%s)\n", "tensors", grouped(a, job->layout.count),
		   grouped(b, job->layout.bytes), size_text(c, job->layout.bytes));
	out_format(out, "%-16s%s bytes on the device, padding included\n", "arena",
		   grouped(a, job->layout.arena_bytes));
	out_format(out, "%-16s%s bytes read in %s segments, %s pieces\n", "plan",
		   grouped(a, job->planned.read_bytes), grouped(b, job->planned.segments),
		   grouped(c, job->planned.pieces));
	for (size_t i = 0; i < groups->count; i++) {
		const struct group *group = &groups->all[i];
		label(out, onehop_route_name(group->route));
		out_format(out, "%s: %s segments, %s bytes read, %s pieces of ", way(group->staged),
			   grouped(a, group->segments), grouped(b, group->read_bytes),
			   grouped(c, group->pieces));
		out_name(out, group->path, strlen(group->path));
		print_reason_names(out, group->reasons);
		out_text(out, "\n");
	}
	print_reasons(out, job->planned.reasons);
	print_notes(out, job->model);
	if (given(request, OPT_SEGMENTS))
		print_segments(out, job);
}

/* ------------------------------------------------------------------------------------------- */

static void
json_reason_names(struct json *json, uint32_t reasons)
{
	json_open(json, "reasons", '[');
	for (uint32_t bit = 1; bit; bit <<= 1)
		if (reasons & bit)
			json_text(json, NULL, onehop_reason_name(bit));
	json_close(json);
}

static void
json_segments(struct json *json, const struct job *job)
{
	json_open(json, "segments", '[');
	for (uint64_t i = 0; i < job->planned.segments; i++) {
		struct onehop_segment segment = segment_at(job, i);
		json_open(json, NULL, '{');
		json_text(json, "route", onehop_route_name(segment.route));
		json_bool(json, "staged", segment.staged != 0);
		json_text(json, "path", segment.path);
		json_number(json, "offset", segment.offset);
		json_number(json, "row_bytes", segment.row_bytes);
		json_number(json, "rows", segment.rows);
		json_number(json, "row_stride", segment.rows > 1 ? segment.row_stride : 0);
		json_number(json, "pieces", segment.pieces);
		json_reason_names(json, segment.reasons);
		json_close(json);
	}
	json_close(json);
}

static void
json_groups(struct json *json, const struct groups *groups)
{
	json_open(json, "groups", '[');
	for (size_t i = 0; i < groups->count; i++) {
		const struct group *group = &groups->all[i];
		json_open(json, NULL, '{');
		json_text(json, "route", onehop_route_name(group->route));
		json_bool(json, "staged", group->staged != 0);
		json_text(json, "path", group->path);
		json_number(json, "segments", group->segments);
		json_number(json, "read_bytes", group->read_bytes);
		json_number(json, "pieces", group->pieces);
		json_reason_names(json, group->reasons);
		json_close(json);
	}
	json_close(json);
}

static void
print_json(struct out *out, const struct request *request, const struct job *job,
	   const struct groups *groups)
{
	struct json json;
	json_begin(&json, out);
	json_text(&json, "path", request->words[0]);
	json_text(&json, "device", job->device);
	json_number(&json, "tensors", job->layout.count);
	json_number(&json, "bytes", job->layout.bytes);
	json_number(&json, "arena_bytes", job->layout.arena_bytes);
	json_number(&json, "read_bytes", job->planned.read_bytes);
	json_number(&json, "segment_count", job->planned.segments);
	json_number(&json, "pieces", job->planned.pieces);
	json_groups(&json, groups);
	json_reasons(&json, job->planned.reasons);
	if (given(request, OPT_SEGMENTS))
		json_segments(&json, job);
	json_notes(&json, job->model);
	json_end(&json);
}

static onehop_status
explain(struct job *job, struct out *out, struct onehop_error *error)
{
	struct groups groups = {0};
	const struct request *request = job->request;
	onehop_status status = job_open(job, request->words[0], error);
	if (!status)
		status = job_allocate(job, 0, error);
	if (!status)
		status = job_plan(job, error);
	if (!status)
		status = sum_up(job, &groups, error);
	if (!status) {
		if (given(request, OPT_JSON))
			print_json(out, request, job, &groups);
		else
			print_table(out, request, job, &groups);
	}
	free(groups.all);
	return status;
}

int
cmd_explain(struct out *out, int argc, char **argv)
{
	struct request request;
	struct job job;
	struct onehop_error error = {0};
	struct onehop_runtime *runtime = NULL;
	int go = request_parse(&request, &explain_usage, out, argc, argv);
	if (go != GO_ON)
		return go;
	/* To explain is to look. */
	if (request.options.look == ONEHOP_UNSET)
		request.options.look = ONEHOP_LOOK_ALWAYS;
	onehop_status status = job_runtime(&request, &runtime, &error);
	if (!status) {
		job_begin(&job, runtime, job_device(&request, runtime), &request);
		status = explain(&job, out, &error);
		job_drop(&job);
	}
	onehop_runtime_destroy(runtime);
	request_drop(&request);
	return status ? say_error(&error) : EXIT_DONE;
}
