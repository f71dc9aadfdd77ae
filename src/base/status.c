/* The status list's names and texts. Everything comes from ONEHOP_STATUS_LIST. */
#include <onehop/status.h>

#define NAME_CASE(name, value, text, exception)                                                    \
	case value:                                                                                \
		return #name;
#define TEXT_CASE(name, value, text, exception)                                                    \
	case value:                                                                                \
		return text;
#define EXCEPTION_CASE(name, value, text, exception)                                               \
	case value:                                                                                \
		return exception;

const char *
onehop_status_name(onehop_status status)
{
	switch (status) {
		ONEHOP_STATUS_LIST(NAME_CASE)
	}
	return "UNKNOWN";
}

const char *
onehop_status_text(onehop_status status)
{
	switch (status) {
		ONEHOP_STATUS_LIST(TEXT_CASE)
	}
	return "unknown status";
}

const char *
onehop_status_exception(onehop_status status)
{
	switch (status) {
		ONEHOP_STATUS_LIST(EXCEPTION_CASE)
	}
	return "RuntimeError";
}
