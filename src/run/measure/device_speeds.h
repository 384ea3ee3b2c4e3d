// How fast a device is at plain things, timed by its own marks.  By a thread under a DeviceScope.
#pragma once

#include <cstdint>

#include <c10/core/Device.h>

#include "paradyse/plan/dtype.h"

namespace paradyse {

// Operations a second of a large square product of this type: what the machine reaches at best.
double large_product_flops_per_second(Dtype dtype, c10::Device device, std::int64_t size = 8192);

// Bytes a second of a copy on the device, each read and written: of more than caches hold.
double copied_bytes_per_second(c10::Device device, std::int64_t bytes = std::int64_t{1} << 30);

// Of one small kernel of many in a row, as the host hands them over.
double kernel_seconds(c10::Device device);

}  // namespace paradyse
