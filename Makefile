# onehop: `make help` lists what there is. meson and ninja do the work; this file sets them up, so
# that a fresh clone needs two commands.

PREFIX  ?= /usr/local
DESTDIR ?=
TIME    ?= 60
ARGS    ?=

# Puts build/venv first in PATH where scripts/setup had to make one.
tools = . build/setup/tools

.PHONY: all demo check bench fuzz wheel install clean distclean help

# Links, so that build/onehop and build/libonehop.so are where one looks for them.
all: build/release/build.ninja
	@$(tools) && ninja -C build/release --quiet
	@ln -sfn release/cli/onehop build/onehop
	@ln -sfn release/src/libonehop.so build/libonehop.so
	@ln -sfn release/src/libonehop.so.0 build/libonehop.so.0

build/release/build.ninja: | build/setup/build
	@$(tools) && meson setup build/release --buildtype=release -Db_ndebug=if-release \
		-Dtests=false --libdir=lib >build/setup/meson.log || { cat build/setup/meson.log; exit 1; }

build/setup/check: tests/python/requirements.txt

build/setup/%: scripts/setup
	@scripts/setup $*

demo: all
	@$(tools) && python3 scripts/demo.py

check: build/setup/check
	@$(tools) && python3 scripts/check.py

# Few large tensors, then many small ones: 16,384 of 512 KiB, or as many as a quarter of memory holds.
bench: all
ifneq ($(ARGS),)
	@build/onehop bench $(ARGS)
else
	@build/onehop bench
	@echo
	@build/onehop bench --tensor-bytes 512K --bytes $$(awk '/^MemAvailable/ \
		{ fits = int($$2 / 4); print (fits < 8388608 ? fits : 8388608) "K" }' /proc/meminfo)
endif

fuzz: build/setup/check
	@$(tools) && python3 scripts/fuzz.py --seconds $(TIME)

# The Python package for every Linux: build/wheel/onehop-*.whl.
wheel:
	@python3 scripts/wheel.py

# A library in a new place is found once the linker's cache knows it; a staged install leaves that
# to the package.
install: all
	@{ $(tools) && meson configure build/release --prefix=$(abspath $(PREFIX)) && \
		ninja -C build/release && meson install -C build/release --no-rebuild \
		$(if $(DESTDIR),--destdir=$(abspath $(DESTDIR))); } >build/setup/install.log || \
		{ cat build/setup/install.log; exit 1; }
	@if [ -z "$(DESTDIR)" ] && [ "$$(id -u)" = 0 ]; then ldconfig; fi
	@echo "installed under $(DESTDIR)$(abspath $(PREFIX))"

# Keeps what was downloaded.
clean:
	@find build -mindepth 1 -maxdepth 1 ! -name venv ! -name python ! -name wheel-tools \
		! -name demo ! -name setup -exec rm -rf {} + 2>/dev/null || true

distclean:
	@rm -rf build

help:
	@echo "make                      the library and the command: build/libonehop.so, build/onehop"
	@echo "make demo                 loads a real model, checks every tensor, prints how fast it went"
	@echo "make check                all tests, with both compilers and both sanitizers"
	@echo "make bench ARGS=          the load beside the machine's ceilings; with ARGS one run of onehop bench"
	@echo "make fuzz TIME=60         each fuzzer for TIME seconds"
	@echo "make wheel                the Python package for every Linux, in build/wheel"
	@echo "make install PREFIX=/usr/local DESTDIR="
	@echo "make clean                removes what was built, keeps what was downloaded; distclean: all"
