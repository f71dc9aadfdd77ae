/* The rules of a tensor-parallel plan: which dimension of which tensor is split. The caller's rules
 * come first, then the plan file's; the first that matches a tensor counts, and a tensor that none
 * matches is whole on each rank. A rule that matches nothing is no error: plans are written for
 * families of models.
 *
 * Rules are resolved once for all tensors: an exact name is looked up, a pattern is held against
 * the tensors that have no rule yet, so a plan with a line for each of 100,000 tensors costs no
 * more than one with a few patterns.
 */
#include "format/fail.h"
#include "format/index.h"
#include "model/glob.h"
#include "model/select.h"

#include <stdio.h>
#include <stdlib.h>

struct rule {
	const char *pattern;
	uint64_t bytes;
	int64_t dim;
};

struct oh_tp_rules {
	const struct onehop_model *model;
	struct oh_share share;
	struct oh_rules file; /* owns the text of its patterns */
	struct rule *rules;
	uint64_t count;
	uint32_t *rule_of; /* by tensor: rule + 1, or 0 */
	uint64_t *shape; /* scratch */
	uint64_t shape_room;
};

/* Plans are written by hand or by a script with a line for each tensor: much less than this. */
#define PLAN_MOST (UINT64_C(256) << 20)

static onehop_status
read_plan_file(struct oh_tp_rules *rules, const char *path, struct onehop_error *error)
{
	uint8_t *text;
	uint64_t bytes;
	onehop_status status = oh_model_read_text(rules->model->runtime, path, PLAN_MOST,
						  "a tensor-parallel plan", &text, &bytes, error);
	if (status != ONEHOP_OK)
		return status;
	return oh_rules_parse(path, text, bytes, &rules->file, error);
}

static onehop_status
gather(struct oh_tp_rules *rules, const struct onehop_select_options *options,
       struct onehop_error *error)
{
	uint64_t most = options->tp_rule_count + rules->file.count;
	if (most >= UINT32_MAX)
		return oh_fail(error, ONEHOP_LIMIT, "a tensor-parallel plan of %llu rules",
			       (unsigned long long)most);
	rules->rules = calloc(most ? most : 1, sizeof *rules->rules);
	if (!rules->rules)
		return oh_fail_no_memory(error, most * sizeof *rules->rules, "the plan's rules");
	for (uint64_t i = 0; i < options->tp_rule_count; i++) {
		const struct onehop_tp_rule *from = &options->tp_rules[i];
		if (!from->pattern)
			return oh_fail(error, ONEHOP_INVALID_ARGUMENT,
				       "tp_rules[%llu] has no pattern", (unsigned long long)i);
		rules->rules[rules->count++] =
			(struct rule){from->pattern, strlen(from->pattern), from->dim};
	}
	for (uint64_t i = 0; i < rules->file.count; i++) {
		const struct oh_rule *from = &rules->file.rules[i];
		rules->rules[rules->count++] =
			(struct rule){(const char *)rules->file.text + from->pattern,
				      from->pattern_bytes, from->dim};
	}
	return ONEHOP_OK;
}

static void
resolve_one(struct oh_tp_rules *rules, uint64_t index)
{
	const struct onehop_model *model = rules->model;
	const struct rule *rule = &rules->rules[index];
	uint64_t exact = oh_lookup_find(&model->names, rule->pattern, rule->bytes);
	if (exact != OH_LOOKUP_NONE) {
		if (!rules->rule_of[exact])
			rules->rule_of[exact] = (uint32_t)index + 1;
		return;
	}
	if (!oh_glob_is_pattern(rule->pattern, rule->bytes))
		return;
	for (uint64_t i = 0; i < model->tensor_count; i++) {
		const struct oh_entry *entry = oh_model_entry(model, i);
		if (!rules->rule_of[i] &&
		    oh_glob_match(rule->pattern, rule->bytes,
				  oh_table_name(oh_model_table(model, i), entry),
				  entry->name_bytes))
			rules->rule_of[i] = (uint32_t)index + 1;
	}
}

static onehop_status
resolve(struct oh_tp_rules *rules, struct onehop_error *error)
{
	uint64_t count = rules->model->tensor_count;
	rules->rule_of = calloc(count ? count : 1, sizeof *rules->rule_of);
	if (!rules->rule_of)
		return oh_fail_no_memory(error, count * sizeof *rules->rule_of, "the plan");
	for (uint64_t i = 0; i < rules->count; i++)
		resolve_one(rules, i);
	return ONEHOP_OK;
}

onehop_status
oh_tp_rules_make(const struct onehop_model *model, const struct onehop_select_options *options,
		 struct oh_tp_rules **rules, struct onehop_error *error)
{
	struct oh_tp_rules *made;
	onehop_status status = ONEHOP_OK;
	*rules = NULL;
	if (!options->tp_rule_count && !options->tp_plan_path)
		return ONEHOP_OK;
	status = oh_model_index_names(model, error);
	if (status != ONEHOP_OK)
		return status;
	made = calloc(1, sizeof *made);
	if (!made)
		return oh_fail_no_memory(error, sizeof *made, "the plan's rules");
	made->model = model;
	made->share.rank = options->tp_rank;
	made->share.size = options->tp_size;
	made->share.split_uneven = options->tp_uneven == ONEHOP_TP_SPLIT;
	if (options->tp_plan_path)
		status = read_plan_file(made, options->tp_plan_path, error);
	if (status == ONEHOP_OK)
		status = gather(made, options, error);
	if (status == ONEHOP_OK)
		status = resolve(made, error);
	if (status != ONEHOP_OK) {
		oh_tp_rules_free(made);
		return status;
	}
	*rules = made;
	return ONEHOP_OK;
}

void
oh_tp_rules_free(struct oh_tp_rules *rules)
{
	if (!rules)
		return;
	free(rules->shape);
	free(rules->rule_of);
	free(rules->rules);
	oh_rules_free(&rules->file);
	free(rules);
}

static onehop_status
read_shape(struct oh_tp_rules *rules, uint64_t tensor, uint64_t dims, struct onehop_error *error)
{
	if (dims > rules->shape_room) {
		uint64_t *grown = realloc(rules->shape, dims * sizeof *grown);
		if (!grown)
			return oh_fail_no_memory(error, dims * sizeof *grown, "a shape");
		rules->shape = grown;
		rules->shape_room = dims;
	}
	oh_table_shape(oh_model_table(rules->model, tensor), oh_model_entry(rules->model, tensor),
		       rules->shape, dims);
	return ONEHOP_OK;
}

/* Says which rule fails on which tensor, and why. */
static onehop_status
fail_share(const struct oh_tp_rules *rules, uint64_t tensor, const struct rule *rule,
	   enum oh_share_fault fault, struct onehop_error *error)
{
	const struct oh_table *table = oh_model_table(rules->model, tensor);
	const struct oh_entry *entry = oh_model_entry(rules->model, tensor);
	const struct oh_dtype *dtype = entry->dtype;
	char name[OH_SHOWN], shape[OH_SHAPE_SHOWN], pattern[OH_SHOWN], why[128];
	if (fault == OH_SHARE_CUTS)
		snprintf(why, sizeof why, "%u ranks would cut %s of %u elements", rules->share.size,
			 table->is_gguf ? "a block" : "bytes", dtype->block_elements);
	else if (dtype->block_elements > 1 && (uint64_t)rule->dim + 1 == entry->rank)
		snprintf(why, sizeof why, "%u ranks do not divide its blocks of %u elements",
			 rules->share.size, dtype->block_elements);
	else
		snprintf(why, sizeof why, "%u ranks do not divide it", rules->share.size);
	oh_fail(error, ONEHOP_INVALID_ARGUMENT,
		"dimension %lld of tensor %s (%s, shape %s) cannot be split by rule %s: %s",
		(long long)rule->dim,
		oh_show(name, oh_table_name(table, entry), entry->name_bytes), dtype->name,
		oh_show_shape(shape, table->text + entry->shape, entry->rank),
		oh_show(pattern, rule->pattern, rule->bytes), why);
	if (fault == OH_SHARE_UNEVEN)
		oh_remedy(error, "allow uneven shares, split another dimension, or leave it whole");
	else
		oh_remedy(error, "split another dimension, or leave the tensor whole");
	return ONEHOP_INVALID_ARGUMENT;
}

onehop_status
oh_tp_part(struct oh_tp_rules *rules, uint64_t tensor, int *is_split, struct oh_part *part,
	   struct onehop_error *error)
{
	const struct oh_entry *entry = oh_model_entry(rules->model, tensor);
	const struct rule *rule;
	char name[OH_SHOWN], shape[OH_SHAPE_SHOWN], pattern[OH_SHOWN];
	enum oh_share_fault fault;
	onehop_status status;
	*is_split = 0;
	if (!rules->rule_of[tensor])
		return ONEHOP_OK;
	rule = &rules->rules[rules->rule_of[tensor] - 1];
	if (rule->dim < 0)
		return ONEHOP_OK;
	if ((uint64_t)rule->dim >= entry->rank) {
		const struct oh_table *table = oh_model_table(rules->model, tensor);
		return oh_fail(error, ONEHOP_INVALID_ARGUMENT,
			       "rule %s splits dimension %lld, which tensor %s of shape %s does "
			       "not have",
			       oh_show(pattern, rule->pattern, rule->bytes), (long long)rule->dim,
			       oh_show(name, oh_table_name(table, entry), entry->name_bytes),
			       oh_show_shape(shape, table->text + entry->shape, entry->rank));
	}
	status = read_shape(rules, tensor, (uint64_t)rule->dim + 1, error);
	if (status != ONEHOP_OK)
		return status;
	fault = oh_share_part(&rules->share, rules->shape, (uint32_t)rule->dim + 1, entry->rank,
			      entry->bytes, entry->dtype->block_elements, entry->dtype->block_bytes,
			      part);
	if (fault != OH_SHARE_OK)
		return fail_share(rules, tensor, rule, fault, error);
	*is_split = 1;
	return ONEHOP_OK;
}
