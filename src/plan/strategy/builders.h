// The attention builders of the table in strategy.cc, each in a file of its name.
#pragma once

#include "paradyse/plan/strategy.h"

namespace paradyse {

Program megatron_ts_attention(const Task& task);
Program ulysses_z_attention(const Task& task);
Program data_z_attention(const Task& task);
Program all_gather_kv_attention(const Task& task);
Program megatron_cz_attention(const Task& task);
Program metp_attention(const Task& task);
Program colossal_z_attention(const Task& task);
Program usp_attention(const Task& task);

}  // namespace paradyse
