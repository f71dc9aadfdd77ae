/* The writer of tables and of JSON: one buffer, no allocation, the first failure remembered. */
#ifndef CLI_OUT_H
#define CLI_OUT_H

#include <stddef.h>
#include <stdint.h>

struct out {
	int fd;
	int failed; /* errno of the first write that failed, 0 if none */
	size_t used;
	char data[1 << 16];
};

void out_begin(struct out *out, int fd);
void out_flush(struct out *out);
void out_raw(struct out *out, const char *text, size_t bytes);
void out_text(struct out *out, const char *text);
void out_spaces(struct out *out, size_t count);
/* At most 1023 bytes a call. */
__attribute__((format(printf, 2, 3))) void out_format(struct out *out, const char *format, ...);
void out_number(struct out *out, uint64_t number);

/* A name for people: control characters, characters that turn the direction of text, backslashes
 * and bytes that are no UTF-8 as \xNN. The columns that it takes. */
void out_name(struct out *out, const char *name, size_t bytes);
size_t name_columns(const char *name, size_t bytes);

/* "12.00 GiB", "512 bytes". */
#define SIZE_TEXT 32
const char *size_text(char text[SIZE_TEXT], uint64_t bytes);

/* "12,884,901,888". */
const char *grouped(char text[SIZE_TEXT], uint64_t number);

/* "1.23 ms", "12.3 s": three digits. */
const char *time_text(char text[SIZE_TEXT], uint64_t ns);

/* JSON. Commas and line breaks come by themselves: a field of the outermost object and an object in
 * one of its lists each get a line. key is NULL in a list. */
struct json {
	struct out *out;
	unsigned depth;
	char open[16];           /* the brackets now open */
	unsigned char many[16];  /* something was written at this depth */
	unsigned char lines[16]; /* in lines of its own */
};

void json_begin(struct json *json, struct out *out);
void json_open(struct json *json, const char *key, char bracket);
void json_close(struct json *json);
void json_string(struct json *json, const char *key, const char *text, size_t bytes);
void json_text(struct json *json, const char *key, const char *text);
void json_number(struct json *json, const char *key, uint64_t number);
void json_double(struct json *json, const char *key, double number, int decimals);
void json_bool(struct json *json, const char *key, int value);
void json_end(struct json *json);

#endif
