"""The protobuf messages of the Open Inference Protocol's gRPC service.

The descriptors are made here, in a pool of their own: generated modules of other packages that
define the same messages, such as tritonclient's, can then be imported into the same process, and
no version of protobuf is prescribed.
"""

from __future__ import annotations

import re
from functools import cache
from types import SimpleNamespace
from typing import Any

__all__ = ["SERVICE", "messages"]

SERVICE = "inference.GRPCInferenceService"

# Messages as in the .proto file, without syntax that is not needed: NAME field:type=number ...; a
# line that is indented goes on with the message above it.
_SCHEMA = """
ServerLiveRequest
ServerLiveResponse live:bool=1
ServerReadyRequest
ServerReadyResponse ready:bool=1
ModelReadyRequest name:string=1 version:string=2
ModelReadyResponse ready:bool=1
ServerMetadataRequest
ServerMetadataResponse name:string=1 version:string=2 extensions:string*=3
ModelMetadataRequest name:string=1 version:string=2
TensorMetadata name:string=1 datatype:string=2 shape:int64*=3
ModelMetadataResponse name:string=1 versions:string*=2 platform:string=3 inputs:TensorMetadata*=4
    outputs:TensorMetadata*=5
InferParameter bool_param:bool=1| int64_param:int64=2| string_param:string=3|
    double_param:double=4| uint64_param:uint64=5|
InferTensorContents bool_contents:bool*=1 int_contents:int32*=2 int64_contents:int64*=3
    uint_contents:uint32*=4 uint64_contents:uint64*=5 fp32_contents:float*=6
    fp64_contents:double*=7 bytes_contents:bytes*=8
InferInputTensor name:string=1 datatype:string=2 shape:int64*=3 parameters:InferParameter%=4
    contents:InferTensorContents=5
InferRequestedOutputTensor name:string=1 parameters:InferParameter%=2
ModelInferRequest model_name:string=1 model_version:string=2 id:string=3
    parameters:InferParameter%=4 inputs:InferInputTensor*=5 outputs:InferRequestedOutputTensor*=6
    raw_input_contents:bytes*=7
InferOutputTensor name:string=1 datatype:string=2 shape:int64*=3 parameters:InferParameter%=4
    contents:InferTensorContents=5
ModelInferResponse model_name:string=1 model_version:string=2 id:string=3
    parameters:InferParameter%=4 outputs:InferOutputTensor*=5 raw_output_contents:bytes*=6
ModelStreamInferResponse error_message:string=1 infer_response:ModelInferResponse=2
ModelConfigRequest name:string=1 version:string=2
ModelVersionPolicyAll
ModelVersionPolicy all:ModelVersionPolicyAll=2|
ModelInput name:string=1 data_type:DataType=2 dims:int64*=4
ModelOutput name:string=1 data_type:DataType=2 dims:int64*=3
ModelInstanceGroup name:string=1 kind:InstanceKind=4 count:int32=2
ModelDynamicBatching preferred_batch_size:int32*=1 max_queue_delay_microseconds:uint64=2
ModelParameter string_value:string=1
ModelConfig name:string=1 platform:string=2 version_policy:ModelVersionPolicy=3
    max_batch_size:int32=4 input:ModelInput*=5 output:ModelOutput*=6
    instance_group:ModelInstanceGroup*=7 dynamic_batching:ModelDynamicBatching=11|
    parameters:ModelParameter%=14 backend:string=17
ModelConfigResponse config:ModelConfig=1
ModelStatisticsRequest name:string=1 version:string=2
StatisticDuration count:uint64=1 ns:uint64=2
InferStatistics success:StatisticDuration=1 fail:StatisticDuration=2 queue:StatisticDuration=3
    compute_input:StatisticDuration=4 compute_infer:StatisticDuration=5
    compute_output:StatisticDuration=6
ModelStatistics name:string=1 version:string=2 last_inference:uint64=3 inference_count:uint64=4
    execution_count:uint64=5 inference_stats:InferStatistics=6
ModelStatisticsResponse model_stats:ModelStatistics*=1
RepositoryIndexRequest repository_name:string=1 ready:bool=2
ModelIndex name:string=1 version:string=2 state:string=3 reason:string=4
RepositoryIndexResponse models:ModelIndex*=1
RepositoryModelLoadRequest repository_name:string=1 model_name:string=2
    parameters:ModelRepositoryParameter%=3
ModelRepositoryParameter bool_param:bool=1| int64_param:int64=2| string_param:string=3|
    bytes_param:bytes=4|
RepositoryModelLoadResponse
RepositoryModelUnloadRequest repository_name:string=1 model_name:string=2
    parameters:ModelRepositoryParameter%=3
RepositoryModelUnloadResponse
"""
_ENUMS = {
    "DataType": {
        "TYPE_INVALID": 0, "TYPE_BOOL": 1, "TYPE_UINT8": 2, "TYPE_UINT16": 3, "TYPE_UINT32": 4,
        "TYPE_UINT64": 5, "TYPE_INT8": 6, "TYPE_INT16": 7, "TYPE_INT32": 8, "TYPE_INT64": 9,
        "TYPE_FP16": 10, "TYPE_FP32": 11, "TYPE_FP64": 12, "TYPE_STRING": 13, "TYPE_BF16": 14,
    },
    "InstanceKind": {"KIND_AUTO": 0, "KIND_GPU": 1, "KIND_CPU": 2, "KIND_MODEL": 3},
}  # fmt: skip
_FIELD = re.compile(r"(\w+):(\w+)([*%]?)=(\d+)(\|?)")


@cache
def messages() -> Any:
    """Return a namespace with the message classes by name."""
    from google.protobuf import descriptor_pool, message_factory

    pool = descriptor_pool.DescriptorPool()
    pool.AddSerializedFile(_file().SerializeToString())
    names = [line.split()[0] for line in _lines()]
    return SimpleNamespace(
        **{
            name: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"inference.{name}"))
            for name in names
        }
    )


def _lines() -> list[str]:
    """Return one line per message."""
    return _SCHEMA.strip().replace("\n    ", " ").splitlines()


def _file() -> Any:
    """Return the descriptor of the file with all messages."""
    from google.protobuf import descriptor_pb2

    file = descriptor_pb2.FileDescriptorProto(
        name="kuiper_inference.proto", package="inference", syntax="proto3"
    )
    for name, values in _ENUMS.items():
        enum = file.enum_type.add(name=name)
        for value, number in values.items():
            enum.value.add(name=value, number=number)
    for line in _lines():
        name, _, fields = line.partition(" ")
        message = file.message_type.add(name=name)
        for field in _FIELD.findall(fields):
            _add_field(message, *field)
    return file


def _add_field(message: Any, name: str, type: str, many: str, number: str, choice: str) -> None:
    """Add a field: repeated with ``*``, a map from strings with ``%``, of a oneof with ``|``."""
    from google.protobuf.descriptor_pb2 import FieldDescriptorProto

    field = message.field.add(name=name, number=int(number))
    field.label = (
        FieldDescriptorProto.LABEL_REPEATED if many else FieldDescriptorProto.LABEL_OPTIONAL
    )
    if many == "%":
        entry = message.nested_type.add(name=f"{name.title().replace('_', '')}Entry")
        entry.options.map_entry = True
        _add_field(entry, "key", "string", "", "1", "")
        _add_field(entry, "value", type, "", "2", "")
        field.type = FieldDescriptorProto.TYPE_MESSAGE
        field.type_name = f".inference.{message.name}.{entry.name}"
    elif type in _ENUMS:
        field.type, field.type_name = FieldDescriptorProto.TYPE_ENUM, f".inference.{type}"
    elif type[0].isupper():
        field.type, field.type_name = FieldDescriptorProto.TYPE_MESSAGE, f".inference.{type}"
    else:
        field.type = getattr(FieldDescriptorProto, f"TYPE_{type.upper()}")
    if choice:
        if not message.oneof_decl:
            message.oneof_decl.add(name="choice")
        field.oneof_index = 0
