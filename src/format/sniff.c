/* What a file is by its first bytes, so that a wrong file is called by its name and not by the
 * first rule that it happens to break. A guess for messages: it never decides that a file is good.
 */
#include "format/fail.h"
#include "format/safetensors.h"

#include <string.h>

struct magic {
	uint16_t at;
	uint8_t bytes;
	const char *magic;
	const char *what;
};

static const struct magic magics[] = {
	{0, 4, "GGUF", "a GGUF file"},
	{0, 4, "FUGG", "a GGUF file in the other byte order"},
	{0, 4, "tjgg", "a GGJT file, which came before GGUF"},
	{0, 4, "fmgg", "a GGMF file, which came before GGUF"},
	{0, 4, "lmgg", "a GGML file, which came before GGUF"},
	{0, 4, "algg", "a GGLA file, an old LoRA adapter"},
	{0, 4, "PK\x03\x04", "a zip archive (a PyTorch checkpoint is one)"},
	{0, 4, "PK\x05\x06", "an empty zip archive"},
	{0, 3, "\x80\x02\x8A", "a pickle (an old PyTorch checkpoint)"},
	{0, 3, "\x80\x02}", "a pickle"},
	{0, 3, "\x80\x02\x63", "a pickle"},
	{0, 3, "\x80\x03}", "a pickle"},
	{0, 3, "\x80\x03\x63", "a pickle"},
	{0, 3, "\x80\x04\x95", "a pickle"},
	{0, 3, "\x80\x05\x95", "a pickle"},
	{0, 8, "\x89HDF\r\n\x1A\n", "an HDF5 file"},
	{0, 6, "\x93NUMPY", "a NumPy array file"},
	{0, 2, "\x1F\x8B", "a gzip archive"},
	{0, 4, "\x28\xB5\x2F\xFD", "a zstd archive"},
	{0, 6, "\xFD\x37zXZ", "an xz archive"},
	{0, 6, "7z\xBC\xAF\x27\x1C", "a 7-Zip archive"},
	{0, 3, "BZh", "a bzip2 archive"},
	{0, 4, "\x7F\x45LF", "an ELF program"},
	{0, 4, "%PDF", "a PDF document"},
	{4, 4, "TFL3", "a TensorFlow Lite model"},
	{257, 5, "ustar", "a tar archive"},
	{0, 12, "version http", "a Git LFS pointer"},
	{0, 8, "/annex/o", "a git-annex pointer"},
	{0, 13, "# xet version", "a Xet pointer"},
};

static const struct magic texts[] = {
	{0, 9, "<!doctype", "a web page (HTML)"},
	{0, 5, "<html", "a web page (HTML)"},
	{0, 5, "<head", "a web page (HTML)"},
	{0, 5, "<body", "a web page (HTML)"},
	{0, 6, "<title", "a web page (HTML)"},
	{0, 5, "<?xml", "an XML document"},
	{0, 4, "<!--", "a web page (HTML)"},
	{0, 6, "<error", "an XML document"},
	{0, 1, "{", "JSON text"},
	{0, 1, "[", "JSON text"},
};

static int
same_letters(const uint8_t *text, const char *lower, size_t bytes)
{
	for (size_t i = 0; i < bytes; i++) {
		uint8_t c = text[i] >= 'A' && text[i] <= 'Z' ? text[i] | 32 : text[i];
		if (c != (uint8_t)lower[i])
			return 0;
	}
	return 1;
}

/* Kinds of text, behind a byte order mark and whitespace. */
static const char *
sniff_text(const uint8_t *head, uint64_t bytes)
{
	uint64_t at = bytes >= 3 && memcmp(head, "\xEF\xBB\xBF", 3) == 0 ? 3 : 0, end;
	while (at < bytes && (head[at] == ' ' || (head[at] >= '\t' && head[at] <= '\r')))
		at++;
	for (size_t i = 0; i < sizeof texts / sizeof *texts; i++)
		if (bytes - at >= texts[i].bytes &&
		    same_letters(head + at, texts[i].magic, texts[i].bytes))
			return texts[i].what;
	/* Prose, such as "Entry not found": printable to the end of what we see. */
	for (end = at; end < bytes; end++)
		if (!(head[end] >= 0x20 && head[end] < 0x7F) &&
		    !(head[end] >= '\t' && head[end] <= '\r'))
			return NULL;
	return end - at >= 4 ? "plain text" : NULL;
}

/* A believable length, then the beginning of a JSON object or white space before it. */
static int
like_safetensors(const uint8_t *head, uint64_t bytes)
{
	uint64_t length = 0;
	if (bytes < 9)
		return 0;
	for (int i = 7; i >= 0; i--)
		length = length << 8 | head[i];
	if (length < 2 || length > OH_SAFETENSORS_MAX_HEADER)
		return 0;
	return head[8] == '{' || head[8] == ' ' || head[8] == '\n' || head[8] == '\t' ||
	       head[8] == '\r';
}

const char *
oh_sniff(const uint8_t *head, uint64_t head_bytes)
{
	/* First: any two or three bytes are also the beginning of some length. */
	if (like_safetensors(head, head_bytes))
		return "a safetensors file";
	for (size_t i = 0; i < sizeof magics / sizeof *magics; i++) {
		const struct magic *m = &magics[i];
		if (head_bytes >= (uint64_t)m->at + m->bytes &&
		    memcmp(head + m->at, m->magic, m->bytes) == 0)
			return m->what;
	}
	return sniff_text(head, head_bytes);
}

struct remedy {
	const char *part; /* of oh_sniff's words */
	const char *remedy;
};

static const struct remedy remedies[] = {
	{"Git LFS", "fetch the file itself: git lfs pull"},
	{"git-annex", "fetch the file itself: git annex get"},
	{"Xet", "fetch the file itself from the hub"},
	{"HTML", "download the file again, logged in if the server asks for it"},
	{"XML", "download the file again: this may be a server's refusal"},
	{"text", "download the file again: this may be a server's refusal"},
	{"other byte order", "convert the file to little-endian"},
	{"GGUF file", "give it a name that ends in .gguf"},
	{"safetensors file", "give it a name that ends in .safetensors"},
	{"archive", "unpack it, or convert what it holds to safetensors"},
};

onehop_status
oh_refuse_kind(const char *path, const uint8_t *head, uint64_t head_bytes, const char *what,
	       const char *wanted, struct onehop_error *error)
{
	const char *remedy = "convert it to safetensors or GGUF";
	char shown[OH_SHOWN];
	if (strstr(what, "text"))
		oh_refuse(error, ONEHOP_MALFORMED, path, "this is %s, not %s: it begins with %s",
			  what, wanted,
			  oh_show(shown, (const char *)head, head_bytes < 40 ? head_bytes : 40));
	else
		oh_refuse(error, ONEHOP_MALFORMED, path, "this is %s, not %s", what, wanted);
	for (size_t i = 0; i < sizeof remedies / sizeof *remedies; i++) {
		if (strstr(what, remedies[i].part)) {
			remedy = remedies[i].remedy;
			break;
		}
	}
	oh_remedy(error, "%s", remedy);
	return ONEHOP_MALFORMED;
}

/* --------------------------------------------------------------------------------------------- */

static onehop_status
truncated_length(const char *path, uint64_t length, uint64_t left, struct onehop_error *error)
{
	oh_refuse(error, ONEHOP_MALFORMED, path,
		  "truncated: the header is %llu bytes long, and only "
		  "%llu follow its length: it reaches past the end of the file",
		  (unsigned long long)length, (unsigned long long)left);
	oh_remedy(error, "get a complete copy of the file");
	return ONEHOP_MALFORMED;
}

static onehop_status
no_length(const char *path, uint64_t file_bytes, struct onehop_error *error)
{
	if (file_bytes == 0)
		oh_refuse(error, ONEHOP_MALFORMED, path, "the file is empty (0 bytes)");
	else
		oh_refuse(error, ONEHOP_MALFORMED, path,
			  "truncated: the file has only %llu %s, too "
			  "short for the 8 bytes of the header length",
			  (unsigned long long)file_bytes, oh_bytes_word(file_bytes));
	oh_remedy(error, "get a complete copy of the file");
	return ONEHOP_MALFORMED;
}

onehop_status
oh_safetensors_length(const char *path, const uint8_t *head, uint64_t head_bytes,
		      uint64_t file_bytes, uint64_t *header_bytes, struct onehop_error *error)
{
	const char *what;
	uint64_t length = 0, swapped;
	if (head_bytes < 8)
		return no_length(path, file_bytes, error);
	what = oh_sniff(head, head_bytes);
	if (what && strcmp(what, "a safetensors file") != 0)
		return oh_refuse_kind(path, head, head_bytes, what, "a safetensors file", error);
	for (int i = 7; i >= 0; i--)
		length = length << 8 | head[i];
	if (length == 0)
		return oh_refuse(
		    error, ONEHOP_MALFORMED, path,
		    "the header length is 0 (zero bytes), and an empty header is no JSON "
		    "object");
	swapped = __builtin_bswap64(length);
	if (length > OH_SAFETENSORS_MAX_HEADER && swapped <= file_bytes - 8 && head_bytes > 8 &&
	    head[8] == '{')
		return oh_refuse(
		    error, ONEHOP_UNSUPPORTED_DATA, path,
		    "the header length is in big-endian byte order (%llu as it stands, "
		    "more than the limit of 100000000 bytes); safetensors is little-endian",
		    (unsigned long long)length);
	if (length > OH_SAFETENSORS_MAX_HEADER)
		return oh_refuse(
		    error, ONEHOP_MALFORMED, path,
		    "the header length is %llu bytes, more than the limit of 100000000%s",
		    (unsigned long long)length,
		    length > file_bytes - 8 ? ", and past the end of the file" : "");
	if (length > file_bytes - 8)
		return truncated_length(path, length, file_bytes - 8, error);
	*header_bytes = length;
	return ONEHOP_OK;
}
