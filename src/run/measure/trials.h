// What `paradyse doctor` tries out on the CPU: whether products and exchanges are right, and how
// fast.
#pragma once

#include <string>

namespace paradyse {

// A float32 product of matrices by one thread.
struct ProductTrial {
  bool right = false;
  double flops_per_second = 0;  // the best of half a second
};
// Leaves this process with one thread a product.
ProductTrial try_product();

// Two local ranks.
struct ExchangeTrial {
  double barrier_seconds = 0;
  double bytes_per_second = 0;  // of each rank, in messages of 8 MiB
  std::string failure;          // empty: all that was sent arrived
};
ExchangeTrial try_exchange();

}  // namespace paradyse
