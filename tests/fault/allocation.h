/* Allocations, and the start of threads, that fail on demand: counted by the linker's --wrap, so
 * that what libc and the look-alike driver allocate for themselves is left alone. */
#ifndef OH_TESTS_FAULT_ALLOCATION_H
#define OH_TESTS_FAULT_ALLOCATION_H

#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdarg.h>
#include <stddef.h>

static atomic_int allocation_is_armed, allocation_goes_on;
static atomic_long allocation_left, allocation_struck;

void *__real_malloc(size_t bytes);
void *__real_calloc(size_t count, size_t bytes);
void *__real_realloc(void *memory, size_t bytes);
char *__real_strdup(const char *text);
int __real_vasprintf(char **text, const char *format, va_list arguments);
int __real_pthread_create(pthread_t *thread, const pthread_attr_t *attributes,
			  void *(*run)(void *), void *argument);
void *__wrap_malloc(size_t bytes);
void *__wrap_calloc(size_t count, size_t bytes);
void *__wrap_realloc(void *memory, size_t bytes);
char *__wrap_strdup(const char *text);
int __wrap_vasprintf(char **text, const char *format, va_list arguments);
int __wrap_pthread_create(pthread_t *thread, const pthread_attr_t *attributes,
			  void *(*run)(void *), void *argument);

/* The allocation with that number fails, and if it goes on all later ones. */
static void
allocation_arm(long number, int goes_on)
{
	atomic_store(&allocation_left, number);
	atomic_store(&allocation_goes_on, goes_on);
	atomic_store(&allocation_struck, 0);
	atomic_store(&allocation_is_armed, 1);
}

/* How many failed. */
static long
allocation_disarm(void)
{
	atomic_store(&allocation_is_armed, 0);
	return atomic_load(&allocation_struck);
}

static int
allocation_fails(void)
{
	if (!atomic_load(&allocation_is_armed))
		return 0;
	long left = atomic_fetch_sub(&allocation_left, 1);
	if (left > 0 || (left < 0 && !atomic_load(&allocation_goes_on)))
		return 0;
	atomic_fetch_add(&allocation_struck, 1);
	errno = ENOMEM;
	return 1;
}

void *
__wrap_malloc(size_t bytes)
{
	return allocation_fails() ? NULL : __real_malloc(bytes);
}

void *
__wrap_calloc(size_t count, size_t bytes)
{
	return allocation_fails() ? NULL : __real_calloc(count, bytes);
}

void *
__wrap_realloc(void *memory, size_t bytes)
{
	return allocation_fails() ? NULL : __real_realloc(memory, bytes);
}

char *
__wrap_strdup(const char *text)
{
	return allocation_fails() ? NULL : __real_strdup(text);
}

int
__wrap_vasprintf(char **text, const char *format, va_list arguments)
{
	return allocation_fails() ? -1 : __real_vasprintf(text, format, arguments);
}

int
__wrap_pthread_create(pthread_t *thread, const pthread_attr_t *attributes, void *(*run)(void *),
		      void *argument)
{
	return allocation_fails() ? EAGAIN : __real_pthread_create(thread, attributes, run, argument);
}

#endif
