/* Patterns over names: * any run of characters, ? one character, [set] one of a set ([a-z], [!a-z]
 * or [^a-z] for none of it; a ] that comes first is a member). Characters are UTF-8's; no escapes:
 * [*] is a star. A [ without its ] stands for itself. */
#ifndef OH_MODEL_GLOB_H
#define OH_MODEL_GLOB_H

#include <stddef.h>

/* 1 if the pattern holds a character that stands for more than itself. */
int oh_glob_is_pattern(const char *pattern, size_t bytes);

/* 1 if the whole name matches. Takes at most pattern_bytes * name_bytes steps. */
int oh_glob_match(const char *pattern, size_t pattern_bytes, const char *name, size_t name_bytes);

#endif
