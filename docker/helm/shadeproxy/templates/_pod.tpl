{{- define "shadeproxy.labels" -}}
app.kubernetes.io/name: shadeproxy
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "shadeproxy.secret" -}}
{{ .Values.existingSecret | default .Release.Name }}
{{- end }}

{{- define "shadeproxy.image" -}}
{{ .Values.image.repository }}{{ if .Values.image.digest }}@{{ .Values.image.digest }}{{ else }}:{{ .Values.image.tag | default .Chart.AppVersion }}{{ end }}
{{- end }}

{{- define "shadeproxy.pod" -}}
metadata:
  labels:
    {{- include "shadeproxy.labels" . | nindent 4 }}
  annotations:
    checksum/config: {{ include (print $.Template.BasePath "/configmap.yaml") . | sha256sum }}
    {{- with .Values.podAnnotations }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
spec:
  automountServiceAccountToken: false
  terminationGracePeriodSeconds: 60
  securityContext:
    fsGroup: 1000
    seccompProfile:
      type: RuntimeDefault
  {{- with .Values.imagePullSecrets }}
  imagePullSecrets:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- if and (eq .Values.kind "DaemonSet") .Values.disk.prepare }}
  initContainers:
    - name: prepare
      image: {{ include "shadeproxy.image" . | quote }}
      command: ["chown", "1000:1000", "/var/cache/shadeproxy"]
      securityContext:
        runAsUser: 0
        allowPrivilegeEscalation: false
        readOnlyRootFilesystem: true
        capabilities:
          drop: ["ALL"]
          add: ["CHOWN"]
      volumeMounts:
        - name: disk
          mountPath: /var/cache/shadeproxy
  {{- end }}
  containers:
    - name: shadeproxy
      image: {{ include "shadeproxy.image" . | quote }}
      imagePullPolicy: {{ .Values.image.pullPolicy }}
      args: ["serve"]
      envFrom:
        - secretRef:
            name: {{ include "shadeproxy.secret" . }}
      {{- if .Values.cluster.name }}
      env:
        - name: POD_IP
          valueFrom:
            fieldRef:
              fieldPath: status.podIP
        - name: SHADEPROXY__CLUSTER__ADVERTISE
          value: "$(POD_IP):9002"
      {{- end }}
      ports:
        - name: s3
          containerPort: 9000
          {{- if eq .Values.kind "DaemonSet" }}
          hostPort: {{ .Values.hostPorts.s3 }}
          {{- end }}
        - name: control
          containerPort: 9001
          {{- if eq .Values.kind "DaemonSet" }}
          hostPort: {{ .Values.hostPorts.control }}
          {{- end }}
        {{- if .Values.cluster.name }}
        - name: peer
          containerPort: 9002
        {{- end }}
      livenessProbe:
        httpGet:
          path: /healthz
          port: control
        periodSeconds: 10
      readinessProbe:
        httpGet:
          path: /readyz
          port: control
        periodSeconds: 5
      resources:
        requests:
          cpu: {{ .Values.cpu.request | quote }}
          memory: {{ add .Values.ram.capacityMiB .Values.process.memoryMiB }}Mi
        limits:
          memory: {{ add .Values.ram.capacityMiB .Values.process.memoryMiB }}Mi
      securityContext:
        runAsNonRoot: true
        runAsUser: 1000
        runAsGroup: 1000
        allowPrivilegeEscalation: false
        readOnlyRootFilesystem: true
        capabilities:
          drop: ["ALL"]
      volumeMounts:
        - name: config
          mountPath: /etc/shadeproxy
          readOnly: true
        - name: ram
          mountPath: /ram
        - name: disk
          mountPath: /var/cache/shadeproxy
        - name: tmp
          mountPath: /tmp
  volumes:
    - name: config
      configMap:
        name: {{ .Release.Name }}
    - name: ram
      emptyDir:
        medium: Memory
        sizeLimit: {{ add .Values.ram.capacityMiB 64 }}Mi
    - name: tmp
      emptyDir: {}
    {{- if eq .Values.kind "DaemonSet" }}
    - name: disk
      hostPath:
        path: {{ .Values.disk.hostPath | quote }}
        type: DirectoryOrCreate
    {{- end }}
  {{- with .Values.nodeSelector }}
  nodeSelector:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- with .Values.tolerations }}
  tolerations:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- with .Values.affinity }}
  affinity:
    {{- toYaml . | nindent 4 }}
  {{- end }}
{{- end }}
