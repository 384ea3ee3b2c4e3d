// What `paradyse doctor` tries out: whether products and exchanges are right, and how fast.
#pragma once

#include <string>

#include <c10/core/Device.h>

#include "paradyse/plan/dtype.h"
#include "paradyse/plan/model.h"

namespace paradyse {

// A float32 product of matrices by one thread.
struct ProductTrial {
  bool right = false;
  double flops_per_second = 0;  // the best of half a second
};
// Leaves this process with one thread a product.
ProductTrial try_product();

// The model whose sizes a device is tried with where no other is named: a LLaMA of 0.9 billion
// weights (hidden 2,048, 16 query and 8 key/value heads 128 wide, FFN 5,632).
Model typical_model();

// A device other than the CPU.
struct DeviceTrial {
  std::string card;                           // "": its driver does not say
  bool right = false;                         // a random product, within its type's rounding
  double large_product_flops_per_second = 0;  // of 8,192 rows and columns
  double product_flops_per_second = 0;        // in a layer of the model, as training runs it
  double attention_flops_per_second = 0;
  double copied_bytes_per_second = 0;  // read and written, of 1 GiB
  double kernel_seconds = 0;           // of a small kernel of many in a row
};
DeviceTrial try_device(const Model& model, Dtype dtype, c10::Device device);

// Two local ranks.
struct ExchangeTrial {
  double barrier_seconds = 0;
  double bytes_per_second = 0;  // of each rank, in messages of 8 MiB
  std::string failure;          // empty: all that was sent arrived
};
ExchangeTrial try_exchange();

}  // namespace paradyse
