// The attention builders of the table in strategy.cc, each in a file of its name.
#pragma once

#include "paradyse/strategy.h"

namespace paradyse {

Program megatron_ts_attention(const Task& task);
Program ulysses_z_attention(const Task& task);
Program data_z_attention(const Task& task);

}  // namespace paradyse
