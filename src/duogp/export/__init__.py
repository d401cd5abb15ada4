"""Fitted models as files that other programs run: ONNX graphs, and programs of torch.export."""

from duogp.export.files import Exported, export_model, read_description

__all__ = ["Exported", "export_model", "read_description"]
