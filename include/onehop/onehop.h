/* SPDX-License-Identifier: Apache-2.0
 *
 * onehop/onehop.h: all of the public API. Each header also stands alone.
 */
#ifndef ONEHOP_H
#define ONEHOP_H

#include <onehop/buffer.h>
#include <onehop/dataset.h>
#include <onehop/dlpack.h>
#include <onehop/file.h>
#include <onehop/machine.h>
#include <onehop/measure.h>
#include <onehop/model.h>
#include <onehop/options.h>
#include <onehop/pipeline.h>
#include <onehop/plan.h>
#include <onehop/runtime.h>
#include <onehop/status.h>
#include <onehop/transfer.h>

#endif
