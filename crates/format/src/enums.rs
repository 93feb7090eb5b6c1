//! The enumerations of the header and their exact JSON spellings. An unknown spelling is an error.

use std::fmt;

use serde::{Deserialize, Serialize};

/// Defines an enum whose variants have fixed spellings (and optionally one older spelling, read only).
macro_rules! spelled {
    ($(#[$meta:meta])* $name:ident {
        $($(#[$variant_meta:meta])* $variant:ident = $spelling:literal $(or $alias:literal)?,)+
    }) => {
        $(#[$meta])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
        pub enum $name {
            $($(#[$variant_meta])* #[serde(rename = $spelling $(, alias = $alias)?)] $variant,)+
        }

        impl $name {
            /// The JSON spelling.
            pub const fn name(self) -> &'static str {
                match self {
                    $($name::$variant => $spelling,)+
                }
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.pad(self.name())
            }
        }
    };
}

spelled! {
    /// What the file was converted to. Informational: every tensor carries its own dtype.
    QuantScheme {
        /// 2-bit affine.
        BaseQ2 = "base_q2",
        /// 3-bit affine.
        BaseQ3 = "base_q3",
        /// 4-bit affine.
        BaseQ4 = "base_q4" or "base4",
        /// 5-bit affine.
        BaseQ5 = "base_q5",
        /// 6-bit affine.
        BaseQ6 = "base_q6",
        /// 8-bit affine.
        BaseQ8 = "base_q8" or "base8",
        /// bfloat16. Also written for `f32` conversions, for which the format has no word.
        Bf16 = "bf16",
        /// IEEE binary16.
        F16 = "f16",
        /// OCP MXFP4.
        MxFp4 = "mxfp4",
        /// NVFP4.
        NvFp4 = "nvfp4",
        /// GGUF superblocks copied byte for byte.
        PassthroughGguf = "passthrough_gguf",
    }
}

spelled! {
    /// What kind of checkpoint the file was made from.
    SourceFormat {
        /// One GGUF file.
        Gguf = "gguf",
        /// A Hugging Face directory.
        HfSafetensors = "hf_safetensors",
        /// An MLX directory.
        MlxSafetensors = "mlx_safetensors",
        /// Made by a program, not from a checkpoint.
        Synthetic = "synthetic",
    }
}

spelled! {
    /// The machine the file was arranged for. Informational: the byte order is the same for all that we read.
    #[derive(Default)]
    TargetBackend {
        /// Apple GPUs.
        #[default]
        Metal = "metal",
        /// NVIDIA Ada.
        CudaSm89 = "cuda_sm89",
        /// NVIDIA Hopper.
        CudaSm90 = "cuda_sm90",
        /// NVIDIA GB10.
        CudaSm121 = "cuda_sm121",
        /// AMD CDNA 3.
        RocmCdna3 = "rocm_cdna3",
        /// x86-64 with AVX2.
        CpuAvx2 = "cpu_avx2",
        /// Arm with NEON.
        CpuNeon = "cpu_neon",
    }
}

spelled! {
    /// How a tensor's codes are arranged. Absent means plain row-major packing.
    Layout {
        /// Plain.
        RowMajor = "rowmajor",
        /// Plain, by another name.
        Tile8x8Mlx = "tile8x8_mlx",
        /// Plain, by another name.
        MetalLaneStrided = "metal_lane_strided",
        /// Plain, by another name.
        MetalBitSpread = "metal_bit_spread",
        /// A tile layout that was never published.
        CudaTcM16n8k16 = "cuda_tc_m16n8k16",
        /// A layout that was never published.
        CudaDp4a = "cuda_dp4a",
        /// A tile layout that was never published.
        RocmMfma = "rocm_mfma",
        /// Plain, by another name.
        CpuRowMajor = "cpu_rowmajor",
        /// GGUF superblocks, byte for byte.
        GgufSuper = "gguf_super",
    }
}

impl Layout {
    /// Whether the bytes are in plain row-major order.
    pub const fn is_plain(self) -> bool {
        match self {
            Layout::RowMajor
            | Layout::Tile8x8Mlx
            | Layout::MetalLaneStrided
            | Layout::MetalBitSpread
            | Layout::CpuRowMajor => true,
            Layout::CudaTcM16n8k16 | Layout::CudaDp4a | Layout::RocmMfma | Layout::GgufSuper => false,
        }
    }
}

spelled! {
    /// How soon a tensor is needed in memory. A hint.
    #[derive(Default)]
    Residency {
        /// Every step.
        Hot = "hot",
        /// Most steps.
        #[default]
        Warm = "warm",
        /// Rarely, e.g. a vision tower.
        Cold = "cold",
    }
}

spelled! {
    /// Which part of a machine a tensor is meant for; decides its alignment in the blob.
    #[derive(Default)]
    ComputeRegion {
        /// Matrix unit.
        Accelerator = "accelerator",
        /// GPU; page aligned. Not spelled out in the header.
        #[default]
        Gpu = "gpu",
        /// CPU.
        Cpu = "cpu",
    }
}

spelled! {
    /// A layer's kind in the header's `layers` list, which existing files fill with one constant.
    LayerKind {
        /// Full attention, as many key heads as query heads.
        AttentionDense = "attention_dense",
        /// Full attention with grouped key heads.
        AttentionGqa = "attention_gqa",
        /// Sliding-window attention.
        AttentionSliding = "attention_sliding",
        /// State space.
        Ssm = "ssm",
        /// State space, mixture-of-experts FFN.
        SsmMoe = "ssm_moe",
        /// Attention, mixture-of-experts FFN.
        AttentionMoe = "attention_moe",
        /// Dense and mixture-of-experts FFN side by side.
        DenseMoe = "dense_moe",
        /// FFN only.
        DenseMlp = "dense_mlp",
    }
}
